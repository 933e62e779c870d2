"""Pages of SGLang's host pool in the cache: how many leading ones are there, copy them out, copy them in. Knows keys,
indices and bytes, and no SGLang types.

`exists`, `get` and `set` may be called from a thread each: those that read share one client, stores have another, so
that a store which waits for room never keeps a prefetch waiting. Invariants: a page is told as loaded only when its
bytes were the block's all the while; a page is told as stored only when it is visible; no call outlives its deadline.
"""
from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from kvartal import Client, Lease, Namespace, Outcome, Status
from kvartal.sglang.leases import Found, KeptLeases
from kvartal.sglang.options import Options
from kvartal.sglang.pages import PoolPages, Run

log = logging.getLogger('sglang.kvartal')

PART = 16  # pages loaded or reserved at once: nobody else waits for more


class PageStore:
    """See the module. count: what happened, by its name in metrics.COUNTERS."""

    def __init__(self, reader: Client, writer: Client, namespace: Namespace, pages: PoolPages, options: Options,
                 count: Callable[[str, float], None], now: Callable[[], float] = time.monotonic):
        self._reader = reader
        self._writer = writer
        self._namespace = namespace
        self._pages = pages
        self._options = options
        self._count = count
        self._now = now
        self._kept = KeptLeases()
        self._telling = threading.Lock()
        self._was_connected: bool | None = None
        self._say_whether_connected()

    def exists(self, keys: Sequence[str]) -> int:
        """How many leading pages of the chain are stored. They stay for the copying that follows soon."""
        found = self._look_up([bytes.fromhex(key) for key in keys])
        matched = found.lease.matched
        if matched:
            self._kept.keep(found)
        return matched

    def get(self, keys: Sequence[str], indices: Any) -> list[bool]:
        """Copies pages into the host pool: for each, whether it is there now. The good ones lead."""
        if not keys:
            return []
        chain = [bytes.fromhex(key) for key in keys]
        pages = self._pages.runs(indices, len(chain))
        found = self._kept.take(chain[0]) or self._look_up(chain)
        first = found.places.get(chain[0], 0)
        asked = 0
        while asked < len(chain) and found.places.get(chain[asked]) == first + asked < found.lease.matched:
            asked += 1
        good = 0
        try:
            good = self._copy_out(found.lease, first, pages[:asked])
        finally:
            if good == asked and first + asked < found.lease.matched:
                self._kept.keep(found)  # the next batch goes on there
            else:
                found.lease.release()
        self._count('loaded_pages', good)
        self._count('failed_pages', len(chain) - good)
        return [True] * good + [False] * (len(chain) - good)

    def set(self, keys: Sequence[str], indices: Any, prefix: Sequence[str] | None) -> list[bool]:
        """Stores pages: for each, whether it is in the cache now. prefix: the keys before them, if SGLang tells."""
        chain = [bytes.fromhex(key) for key in keys]
        pages = self._pages.runs(indices, len(chain))
        parent = bytes.fromhex(prefix[-1]) if prefix else None
        depth = len(prefix or ())
        stored = 0
        while stored < len(chain):
            part = min(PART, len(chain) - stored)
            done = self._store_part(chain[stored:stored + part], pages[stored:stored + part], parent, depth + stored)
            stored += done
            if done < part:
                break  # the rest of the chain would not be found without these
            parent = chain[stored - 1]
        self._count('stored_pages', stored)
        self._count('skipped_pages', len(chain) - stored)
        self._say_whether_connected()
        return [True] * stored + [False] * (len(chain) - stored)

    def enter(self, namespace: Namespace) -> None:
        """What was stored so far is not found again. No other call may be under way."""
        self._kept.drop_all()
        for client in self._reader, self._writer:
            client.close_namespace(self._namespace)
        self._namespace = namespace

    def close(self) -> None:
        """Ends the sessions with the daemon."""
        self._kept.close()
        self._reader.close()
        self._writer.close()

    # --- inside

    def _look_up(self, chain: list[bytes]) -> Found:
        begun = self._now()
        lease = self._reader.lookup(self._namespace, chain, deadline_ms=self._options.lookup_deadline_ms)
        self._count('lookups', 1)
        self._count('lookup_seconds', self._now() - begun)
        self._count('lookups_unanswered', self._reader.status != Status.OK)
        self._say_whether_connected()
        return Found(lease, {key: i for i, key in enumerate(chain[:lease.matched])})

    def _copy_out(self, lease: Lease, first: int, pages: Sequence[Sequence[Run]]) -> int:
        """How many leading pages are good."""
        until = self._now() + self._options.load_deadline_ms / 1000
        done = 0
        while done < len(pages):
            part = min(PART, len(pages) - done)
            loaded = self._load_part(lease, first + done, part, until)
            for i in range(loaded):
                source = lease.block(first + done + i)
                if source is None:
                    loaded = i
                    break
                self._pages.write(pages[done + i], source)
                if not lease.valid(first + done + i):
                    loaded = i
                    break
            done += loaded
            if loaded < part:
                log.warning('Kvartal: %d of %d pages could not be loaded and are computed: %s', len(pages) - done,
                            len(pages), self._reader.error or 'they were taken back meanwhile, or their time was up')
                break
        return done

    def _load_part(self, lease: Lease, first: int, part: int, until: float) -> int:
        """How many blocks from `first` on can be read now."""
        def load() -> int:
            left_ms = int((until - self._now()) * 1000)
            return lease.load(first, part, left_ms) if left_ms > 0 else 0  # to the client 0 means a second

        loaded = load()
        if loaded < part and self._reader.refusal:
            lease.release_front(first)  # what was copied makes room for the rest
            loaded = load()
        return loaded

    def _store_part(self, chain: list[bytes], pages: Sequence[Sequence[Run]], parent: bytes | None, depth: int) -> int:
        """How many leading pages are in the cache now, if need be without this."""
        deadline_ms = self._options.store_deadline_ms
        with self._writer.reserve(self._namespace, chain, parent, depth, deadline_ms=deadline_ms) as slots:
            granted = 0
            for i in range(len(slots)):
                slot = slots[i]
                if slot is not None:
                    self._pages.read(pages[i], slot)
                    granted += 1
            if slots.commit(deadline_ms) < granted:
                return 0
            done = [outcome != Outcome.REFUSED for outcome in slots.outcomes]
            return done.index(False) if False in done else len(done)

    def _say_whether_connected(self) -> None:
        connected = self._reader.connected
        with self._telling:
            if connected == self._was_connected:
                return
            self._was_connected = connected
        if connected:
            log.info('Kvartal: attached as tenant %s', self._reader.tenant)
        else:
            log.warning('Kvartal: no cache for now: %s', self._reader.error)
