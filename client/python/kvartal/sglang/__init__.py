"""The HiCache storage backend for SGLang: `"module_path": "kvartal.sglang", "class_name": "KvartalHiCache"`.

SGLang itself is imported with the backend, not before: what it stands on is tested without one.
"""
from typing import Any

__all__ = ['KvartalHiCache']


def __getattr__(name: str) -> Any:
    if name != 'KvartalHiCache':
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    from kvartal.sglang.backend import KvartalHiCache
    return KvartalHiCache
