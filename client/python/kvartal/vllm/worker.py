"""The worker's half of the connector: copies between the engine's pages and the cache, on one thread of its own.

`submit*`, `flush`, `weights_change` and `results` belong to the engine's thread; they never wait for the daemon, except
`flush` for `FLUSH_S`. Invariants: every job ends and is told once, whatever the daemon does; after `flush` no page of
those jobs is read; a page that was not loaded in full is told as failed in the same results as its request; after
`weights_change` no load is told as good and no page is read.
"""
from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVarTuple, Unpack

from kvartal import Client, Namespace, Outcome
from kvartal.vllm.options import Options
from kvartal.vllm.pages import Pages
from kvartal.vllm.plan import NO_LEASE, LoadJob, StepPlan, StepReport, StoreJob

Queued = TypeVarTuple('Queued')
log = logging.getLogger('vllm.kvartal')

FLUSH_S = 0.1  # a store of preempted blocks gets this long before it is given up
STORE_PART = 16  # blocks reserved at once: a load waits for one part at most
IDLE_WAIT_S = 0.001  # a step without a forward waits this long for a transfer, instead of spinning


@dataclass
class Results:
    """What became known since the last results. sent, received: requests. failed_blocks: engine blocks to compute."""

    sent: set[str] = field(default_factory=set)
    received: set[str] = field(default_factory=set)
    failed_blocks: set[int] = field(default_factory=set)
    report: StepReport = field(default_factory=StepReport)


class WorkerSide:
    """See the module. connect: engine group -> a client of the daemon; called on the copying thread."""

    def __init__(self, connect: Callable[[bytes | None], Client], options: Options, pages: Pages, shard: int = 0,
                 now: Callable[[], float] = time.monotonic):
        self._connect = connect
        self._options = options
        self._pages = pages
        self._shard = shard
        self._now = now
        self._client: Client | None = None
        self._group: bytes | None = None
        self._namespace: Namespace | None = None  # of the last job: the client has that one open alone
        self._changed = threading.Condition()
        # --- guarded by _changed
        self._loads: deque[tuple[LoadJob, bytes | None, float]] = deque()  # and until when
        self._stores: deque[tuple[StoreJob, bytes | None]] = deque()
        self._live: set[int] = set()
        self._cancelled: set[int] = set()
        self._reading: int | None = None  # the store job whose pages are being read now
        self._awaited: dict[str, list[int]] = {}
        self._landed: list[tuple[LoadJob, int]] = []  # ended since the last results, and how many blocks are good
        self._failing: set[int] = set()  # loads whose KV is not to be used any more
        self._weights_changed = False
        self._results = Results()
        self._counts: Counter[str] = Counter()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name='kvartal-copy', daemon=True)
        self._thread.start()

    # --- the engine's thread

    def submit(self, plan: StepPlan) -> None:
        """Begins this step's loads, fails those that are not wanted any more, and notes which finished requests wait
        for their stores. What the engine has queued so far may still read the blocks that are loaded into."""
        fenced = not plan.loads or self._fence()
        until = self._now() + self._options.load_deadline_ms / 1000
        with self._changed:
            self._loads.extend((job, plan.group, until) for job in plan.loads)
            self._live.update(job.job for job in plan.loads)
            self._failing.update(self._live.union(job.job for job, _ in self._landed).intersection(plan.fail))
            if not fenced:
                self._failing.update(job.job for job in plan.loads)
            self._awaited.update(plan.awaited)
            self._changed.notify_all()

    def submit_stores(self, plan: StepPlan) -> None:
        """Begins this step's stores. The forward that computes their pages is queued, on a CPU it has ended."""
        fenced = not plan.stores or self._fence()
        with self._changed:
            self._stores.extend((job, plan.group) for job in plan.stores)
            self._live.update(job.job for job in plan.stores)
            if not fenced:
                self._cancelled.update(job.job for job in plan.stores)
            self._changed.notify_all()

    def _fence(self) -> bool:
        """False: it failed, and the pages may not be touched. The jobs end all the same, as failed."""
        try:
            self._pages.fence()
            return True
        except Exception:
            log.exception('Kvartal: copies cannot be ordered behind the engine; this step has none')
            return False

    def flush(self, jobs: list[int]) -> None:
        """Ends those stores, or gives them up: their pages are about to be written."""
        if not jobs:
            return
        with self._changed:
            if self._changed.wait_for(lambda: self._live.isdisjoint(jobs), FLUSH_S):
                return
            self._cancelled.update(self._live.intersection(jobs))
            self._changed.wait_for(lambda: self._reading not in jobs)

    def weights_change(self) -> None:
        """KV of before and after does not mix: loads fail, those that were not told yet too, and nothing is stored any
        more."""
        with self._changed:
            self._weights_changed = True

    def results(self, idle: bool) -> Results:
        """What ended since the last call. idle: the step had no forward."""
        with self._changed:
            if idle and (self._loads or self._live or self._awaited) and not self._has_news():
                self._changed.wait_for(self._has_news, IDLE_WAIT_S)
            taken, self._results = self._results, Results()
            taken.report.weights_changed = self._weights_changed
            self._tell_landed(taken)
            taken.sent = {request for request, jobs in self._awaited.items() if self._live.isdisjoint(jobs)}
            for request in taken.sent:
                del self._awaited[request]
            return taken

    def take_counts(self) -> dict[str, float]:
        """What happened since the last call; see metrics.COUNTERS."""
        with self._changed:
            counts, self._counts = self._counts, Counter()
        return dict(counts)

    def close(self) -> None:
        """Ends the thread after the job it is at."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._thread.join(self._options.load_deadline_ms / 1000 + 1)
        if self._client is not None and not self._thread.is_alive():
            self._client.close()

    def _has_news(self) -> bool:
        return bool(self._results.report.done) or any(
            self._live.isdisjoint(jobs) for jobs in self._awaited.values())

    # --- the copying thread

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopping or self._loads or self._stores)
                if self._stopping:
                    return
                load = self._loads.popleft() if self._loads else None
                store = None if load else self._stores.popleft()
            if load:
                self._end_load(load[0], self._blocks_done(self._load, *load))
            elif store:
                self._end_store_part(store[0], store[1], self._blocks_done(self._store_part, *store))

    def _blocks_done(self, transfer: Callable[[Unpack[Queued]], int], *queued: Unpack[Queued]) -> int:
        try:
            return transfer(*queued)
        except TimeoutError as error:
            log.warning('Kvartal: a transfer was given up, and its blocks are computed: %s', error)
            return 0
        except Exception:
            log.exception('Kvartal: a transfer failed; the engine goes on without it')
            return 0

    def _end(self, job: int) -> None:
        self._live.discard(job)
        self._results.report.done[job] += 1
        self._changed.notify_all()

    def _tell_landed(self, results: Results) -> None:
        for job, loaded in self._landed:
            good = 0 if self._weights_changed or job.job in self._failing else loaded
            self._failing.discard(job.job)
            results.received.add(job.request_id)
            self._counts['loaded_blocks'] += good
            self._counts['failed_blocks'] += len(job.blocks) - good
            if good < len(job.blocks):
                results.failed_blocks.update(job.blocks[good:])
                results.report.failed.add(job.job)
        self._landed.clear()

    def _end_load(self, job: LoadJob, loaded: int) -> None:
        with self._changed:
            self._landed.append((job, loaded))
            self._end(job.job)

    def _end_store_part(self, job: StoreJob, group: bytes | None, stored: int) -> None:
        part = min(STORE_PART, len(job.keys))
        with self._changed:
            self._counts['stored_blocks'] += stored
            if stored < part:
                self._counts['skipped_blocks'] += len(job.keys) - stored
                self._results.report.failed.add(job.job)
            elif part < len(job.keys) and job.job not in self._cancelled:
                self._stores.appendleft((job.without_head(part), group))
                return
            self._cancelled.discard(job.job)
            self._end(job.job)

    def _attached(self, group: bytes | None, namespace: Namespace) -> Client:
        """The client of that engine group, for a job of that namespace."""
        if self._client is None or self._group != group:
            if self._client is not None:
                self._client.close()
            self._client = self._connect(group)
            self._group = group
            self._namespace = None
        if self._namespace is not None and self._namespace != namespace:
            self._client.close_namespace(self._namespace)
        self._namespace = namespace
        return self._client

    def _left_ms(self, until: float) -> int:
        """Raises TimeoutError when nothing is left: to the client 0 means a second."""
        left = int((until - self._now()) * 1000)
        if left < 1:
            raise TimeoutError('its deadline has passed')
        return left

    def _load(self, job: LoadJob, group: bytes | None, until: float) -> int:
        """How many leading blocks of the job are good."""
        if job.lease == NO_LEASE or self._weights_changed or job.job in self._failing:
            return 0
        self._left_ms(until)
        client = self._attached(group, job.namespace)
        places = range(job.first, job.first + len(job.blocks))
        with client.borrow(job.namespace, job.lease, places, self._left_ms(until)) as lease:
            loaded = lease.load(deadline_ms=self._left_ms(until))
            for i in range(loaded):
                source = lease.block(job.first + i, self._shard)
                if source is None:
                    loaded = i
                    break
                self._pages.write(job.blocks[i], source)
                if not lease.valid(job.first + i):
                    loaded = i
                    break
            if loaded < len(job.blocks):
                log.warning('Kvartal: %d of %d blocks of request %s could not be loaded and are computed: %s',
                            len(job.blocks) - loaded, len(job.blocks), job.request_id,
                            client.error or 'they were taken back meanwhile')
            return loaded

    def _store_part(self, job: StoreJob, group: bytes | None) -> int:
        """How many of the first STORE_PART blocks of the job are in the cache now, if need be without it."""
        client = self._attached(group, job.namespace)
        with client.reserve(job.namespace, job.keys[:STORE_PART], job.parent, job.depth, job.request, self._shard,
                            self._options.store_deadline_ms) as slots:
            for i in range(len(slots)):
                slot = slots[i]
                if slot is None:
                    continue
                if not self._begin_reading(job.job):
                    return 0
                try:
                    self._pages.read(job.blocks[i], slot)
                finally:
                    self._end_reading()
            return slots.commit(self._options.store_deadline_ms) + slots.outcomes.count(Outcome.EXISTS)

    def _begin_reading(self, job: int) -> bool:
        with self._changed:
            if job in self._cancelled or self._stopping or self._weights_changed:
                return False
            self._reading = job
            return True

    def _end_reading(self) -> None:
        with self._changed:
            self._reading = None
            self._changed.notify_all()
