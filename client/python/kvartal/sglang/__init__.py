"""The HiCache storage backend for SGLang: `"module_path": "kvartal.sglang", "class_name": "KvartalHiCache"`.

SGLang itself is imported with the backend, not before: what it stands on is tested without one. An SGLang that is not
supported, or lacks a name that the backend needs, gets a backend that says so and declines: its engine serves.
"""
from typing import Any

from kvartal.declined import Declined
from kvartal.sglang import version

__all__ = ['KvartalHiCache']


def __getattr__(name: str) -> Any:
    if name != 'KvartalHiCache':
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    try:
        version.check_version()
        from kvartal.sglang.backend import KvartalHiCache
        return KvartalHiCache
    except Declined as reason:
        why = str(reason)
    except Exception as error:  # whatever an import raises
        why = f'{type(error).__name__}: {error}; supported are SGLang {", ".join(version.SUPPORTED_SGLANG)}'
    from kvartal.sglang.uncached import uncached_backend
    return uncached_backend(why)
