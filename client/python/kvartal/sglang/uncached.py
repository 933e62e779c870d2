"""The storage backend of an engine that runs uncached: it finds nothing, keeps nothing, and lets the engine serve.
`KvartalHiCache` stands on it; alone it is the backend for an SGLang that is not supported, of whose interface it needs
what every version of it has.
"""
from __future__ import annotations

import functools
import importlib
import logging
import types
from typing import Any

from kvartal.sglang.metrics import Counts

log = logging.getLogger('sglang.kvartal')
_STORAGE = 'sglang.srt.mem_cache.hicache_storage'


class Uncached:
    """What SGLang asks of a storage backend, answered for one without storage. Any version's arguments do."""

    def close(self) -> None:
        """SGLang detaches the backend."""

    def clear(self) -> None:
        """There is nothing to forget."""

    def exists(self, key: str) -> bool:
        """One page: never there."""
        return False

    def get(self, key: str, *_: Any, **__: Any) -> None:
        """One page."""

    def batch_get(self, keys: list[str], *_: Any, **__: Any) -> list[None]:
        """Pages, without interface_v1."""
        return [None] * len(keys)

    def set(self, key: str, *_: Any, **__: Any) -> bool:
        """One page."""
        return False

    def batch_set(self, keys: list[str], *_: Any, **__: Any) -> bool:
        """Pages, without interface_v1."""
        return False

    def batch_exists(self, keys: list[str], *_: Any, **__: Any) -> int:
        """How many leading pages are stored: none."""
        return 0

    def batch_get_v1(self, keys: list[str], *_: Any, **__: Any) -> list[bool]:
        """None is copied, in or out."""
        return [False] * len(keys)

    batch_set_v1 = batch_get_v1

    def batch_exists_v2(self, keys: list[str], *_: Any, **__: Any) -> Any:
        """A miss: of several pools."""
        return importlib.import_module(_STORAGE).PoolTransferResult.empty()

    def batch_get_v2(self, transfers: list[Any], *_: Any, **__: Any) -> dict[str, list[bool]]:
        """Of several pools."""
        return {transfer.name: [False] * len(transfer.keys or ()) for transfer in transfers}

    batch_set_v2 = batch_get_v2


class _Unsupported(Uncached):
    """Says why when SGLang makes it, on each rank."""

    _reason = ''

    def __init__(self, storage_config: Any, *_: Any, **__: Any):
        try:
            self._counts = Counts.of_rank(storage_config)
        except Exception:  # a version whose configuration is another: an engine without a counter serves all the same
            self._counts = Counts()
        self._counts.add('uncached', 1)
        log.warning('Kvartal: this engine runs uncached: %s', self._reason)

    @property
    def counts(self) -> dict[str, float]:
        """What happened since the start; see metrics.COUNTERS."""
        return dict(self._counts.totals)


def _does_nothing(self: Any, *_: Any, **__: Any) -> None:
    """An abstract method of some version."""


def uncached_backend(reason: str) -> type:
    """A class that SGLang can instantiate, for engines that run uncached for that reason. Raises ImportError for an
    SGLang without storage backends, which does not get here."""
    return _class_on(importlib.import_module(_STORAGE).HiCacheStorage, reason)


@functools.cache  # SGLang may ask for it again
def _class_on(base: type, reason: str) -> type:
    body = {name: _does_nothing for name in getattr(base, '__abstractmethods__', ()) if not hasattr(_Unsupported, name)}
    return types.new_class('KvartalHiCache', (_Unsupported, base), exec_body=lambda namespace: namespace.update(
        body, _reason=reason, __module__=__name__))
