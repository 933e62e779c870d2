"""The HiCache storage backend for SGLang: `"module_path": "kvartal.sglang", "class_name": "KvartalHiCache"`.

SGLang itself is imported with the backend, not before: what it stands on is tested without one. An SGLang that is not
supported, or lacks a name that the backend needs, gets a backend that says so and declines: its engine serves.
"""
from typing import Any

from kvartal.declined import load_or_decline
from kvartal.sglang import version

__all__ = ['KvartalHiCache']


def __getattr__(name: str) -> Any:
    if name != 'KvartalHiCache':
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    return load_or_decline(_load, _uncached, f'SGLang {", ".join(version.SUPPORTED_SGLANG)}')


def _load() -> Any:
    version.check_version()
    from kvartal.sglang.backend import KvartalHiCache
    return KvartalHiCache


def _uncached(reason: str) -> Any:
    from kvartal.sglang.uncached import uncached_backend
    return uncached_backend(reason)
