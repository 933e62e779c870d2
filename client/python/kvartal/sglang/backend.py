"""KvartalHiCache: the thin shell that SGLang sees. It finds out whether this engine can be served, and hands every call
to the store.

Rules of the shell: nothing is ever raised into the engine; one log line says why an engine runs uncached; after an
exception no more is looked up or stored.
"""
from __future__ import annotations

import functools
import logging
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from sglang.srt.mem_cache.hicache_storage import HiCacheStorage

from kvartal import Client
from kvartal.declined import Declined
from kvartal.sglang import identity, version, weight_watch
from kvartal.sglang.metrics import Counts
from kvartal.sglang.options import Options
from kvartal.sglang.pages import PoolPages
from kvartal.sglang.store import PageStore
from kvartal.sglang.uncached import Uncached

if TYPE_CHECKING:
    import torch
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig, HiCacheStorageExtraInfo
    from sglang.srt.mem_cache.pool_host import HostKVCache

log = logging.getLogger('sglang.kvartal')
Call = TypeVar('Call', bound=Callable[..., Any])


def _never_raises(otherwise: Callable[..., Any]) -> Callable[[Call], Call]:
    """An exception of ours could end the engine: it is logged, and the engine goes on as if there were no cache."""
    def wrap(method: Call) -> Call:
        @functools.wraps(method)
        def guarded(self: KvartalHiCache, *args: Any, **kwargs: Any) -> Any:
            try:
                return method(self, *args, **kwargs)
            except Declined as reason:
                self._decline(str(reason))
            except Exception as error:
                self._decline(f'{method.__name__} failed: {type(error).__name__}: {error}', a_bug=True)
            return otherwise(*args, **kwargs)
        return guarded  # type: ignore[return-value]
    return wrap


class KvartalHiCache(Uncached, HiCacheStorage):
    """Pages of this node's cache for one rank of one SGLang engine; see docs/SGLANG.md for the flags. What it has not
    of its own SGLang asks only of engines that are declined."""

    def __init__(self, storage_config: HiCacheStorageConfig, kwargs: Any = None):
        self._config = storage_config
        self._deciding = threading.Lock()
        self._store: PageStore | None = None
        self._declined = ''
        self._weight_version = ''
        self._namespace_of: Callable[[bytes], Any] = bytes
        self._counts = Counts.of_rank(storage_config)

    def _decline(self, reason: str, a_bug: bool = False) -> None:
        with self._deciding:
            if self._declined:
                return
            self._declined = reason
        log.warning('Kvartal: this engine runs uncached: %s', reason, exc_info=a_bug)
        self._counts.add('uncached', 1)

    def _serving(self) -> PageStore | None:
        """The store, unless this engine runs uncached."""
        if self._declined or self._store is None:
            return None
        if identity.weight_version() != self._weight_version:
            # A page that waits to be stored may be of the weights before.
            raise Declined('its weight_version was changed while it ran: restart it')
        return self._store

    @_never_raises(lambda *_, **__: None)
    def weights_change(self) -> None:
        """From here on KV is not what the digest says."""
        raise Declined('its weights were changed while it ran: restart it')

    @property
    def counts(self) -> dict[str, float]:
        """What happened since the start; see metrics.COUNTERS."""
        return dict(self._counts.totals)

    # --- the life of the backend

    @_never_raises(lambda *_, **__: None)
    def register_mem_pool_host(self, mem_pool_host: HostKVCache) -> None:
        """The pages of the engine are there: this is where the cache is opened."""
        super().register_mem_pool_host(mem_pool_host)
        version.check_version()
        identity.check_keys()
        identity.check_config(self._config)
        weight_watch.watch(self)
        options = Options.parse(self._config.extra_config)
        pages = PoolPages(mem_pool_host)
        model, weights = identity.model_config(), identity.weights_digest(options)
        self._namespace_of = functools.partial(identity.namespace_of, self._config, pages, weights, model)
        self._weight_version = identity.weight_version()
        namespace = self._namespace_of(b'')
        reader, writer = (Client(options.socket, f'sglang {does} of rank {self._config.tp_rank}')
                          for does in ('reader', 'writer'))
        self._store = PageStore(reader, writer, namespace, pages, options, self._counts.add)
        log.info('Kvartal: pages of %d tokens, %d bytes, digest %s', namespace.tokens_per_block, namespace.shard_bytes,
                 namespace.digest.hex()[:16])

    @_never_raises(lambda *_, **__: None)
    def register_mem_host_pool_v2(self, host_pool: HostKVCache, host_pool_name: Any) -> None:
        """The engine has this pool, too."""
        super().register_mem_host_pool_v2(host_pool, host_pool_name)
        if str(host_pool_name) != 'kv':
            raise Declined(f'the model keeps more than KV of plain attention: a pool "{host_pool_name}"')

    @_never_raises(lambda *_, **__: None)
    def clear(self) -> None:
        """What was stored so far is not found again by this engine."""
        store = self._serving()
        if store is None:
            return
        if self._config.is_mla_model and self._config.tp_size > 1:
            # Its ranks read what one of them stores, and have no word in common for the time after.
            raise Declined('its storage was cleared, which ranks that share pages cannot do together')
        namespace = self._namespace_of(os.urandom(16))
        store.enter(namespace)
        log.info('Kvartal: cleared; digest %s', namespace.digest.hex()[:16])

    @_never_raises(lambda *_, **__: None)
    def close(self) -> None:
        """SGLang detaches the backend. Its threads have ended."""
        store, self._store = self._store, None
        if store is not None:
            store.close()

    # --- pages

    @_never_raises(lambda *_, **__: 0)
    def batch_exists(self, keys: list[str], extra_info: HiCacheStorageExtraInfo | None = None) -> int:
        """How many leading pages are stored."""
        store = self._serving()
        return store.exists(keys) if store is not None and keys else 0

    @_never_raises(lambda keys, *_, **__: [False] * len(keys))
    def batch_get_v1(self, keys: list[str], host_indices: torch.Tensor,
                     extra_info: HiCacheStorageExtraInfo | None = None) -> list[bool]:
        """Copies pages into the host pool."""
        store = self._serving()
        return store.get(keys, host_indices) if store is not None else [False] * len(keys)

    @_never_raises(lambda keys, *_, **__: [False] * len(keys))
    def batch_set_v1(self, keys: list[str], host_indices: torch.Tensor,
                     extra_info: HiCacheStorageExtraInfo | None = None) -> list[bool]:
        """Stores pages."""
        store = self._serving()
        if store is None:
            return [False] * len(keys)
        return store.set(keys, host_indices, extra_info.prefix_keys if extra_info is not None else None)
