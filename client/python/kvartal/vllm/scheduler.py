"""The scheduler's half of the connector: what of a request is cached, what to load, what to store, and which engine
blocks have to stay meanwhile. Knows requests and block numbers, no bytes and no vLLM types.

Confined to the scheduler's thread. Invariants: a lookup is made once a request and admission; a lease lives until its
load was reported; a finished request is waited for only while a store of it is under way; no engine block is given to
two jobs that write.
"""
from __future__ import annotations

import itertools
import logging
import os
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from kvartal import Client, Lease, Namespace, Status
from kvartal.vllm.cost import LoadCost
from kvartal.vllm.options import Options
from kvartal.vllm.plan import NO_LEASE, LoadJob, StepPlan, StepReport, StoreJob

log = logging.getLogger('vllm.kvartal')


@dataclass
class _Request:
    """One request of the engine. `engine` is vLLM's Request: its token count and block hashes grow as it runs."""

    name: str
    engine: Any
    cacheable: bool
    admission: int = 0  # preemptions it has had; another number is another admission
    asked: bool = False
    may_store: bool = True
    lease: Lease | None = None
    min_tokens: int = 0  # a shorter hit is computed
    request: int = 0  # number of its lookup, for the reservations of the same chain
    first: int = 0  # place of the first block to load, as of the last answer to the engine
    handled: int = 0  # leading blocks that are in the cache, or in a store job
    stores: set[int] = field(default_factory=set)

    def readmit(self, admission: int) -> None:
        self.admission = admission
        self.asked = False
        self.may_store = True
        self.handled = 0
        self.let_go()

    def let_go(self) -> None:
        if self.lease is not None:
            self.lease.release()
        self.lease = None


@dataclass
class _Load:
    request: _Request
    lease: Lease
    blocks: int
    begun: float
    failed: bool = False


class SchedulerSide:
    """See the module. Before `open` every request is a miss and nothing is stored."""

    def __init__(self, client: Client, options: Options, block_tokens: int, engine_blocks: int, ranks: int,
                 now: Callable[[], float] = time.monotonic,
                 still_cacheable: Callable[[Any], bool] = lambda engine: True):
        self._client = client
        self._options = options
        self._block_tokens = block_tokens
        self._max_loading = max(1, int(engine_blocks * options.max_loading_share))
        self._ranks = ranks
        self._now = now
        # A session's request may be given an image or a sound after it began.
        self._still_cacheable = still_cacheable
        self._cost = LoadCost(block_tokens)
        # Of the steps that were begun and have not ended: tokens, and when. An engine has two at most.
        self._steps: deque[tuple[int, float]] = deque(maxlen=2)
        self._step_ended = 0.0
        self._namespace_of: Callable[[bytes], Namespace] | None = None
        self._namespace: Namespace | None = None
        self._requests: dict[str, _Request] = {}
        self._loads: dict[int, _Load] = {}
        self._stores: dict[int, _Request] = {}
        self._loading = 0  # engine blocks that loads hold
        self._done: dict[int, int] = {}  # ranks that ended a job, while others have not
        self._plan = StepPlan()
        self._jobs = itertools.count(1)
        self._was_connected: bool | None = None
        self._counts: defaultdict[str, float] = defaultdict(float)

    def open(self, namespace_of: Callable[[bytes], Namespace]) -> None:
        """From here on blocks are looked up and stored. namespace_of: epoch -> the namespace of this engine's KV; first
        asked when a request arrives, as the engine seeds its hashes only after this call."""
        self._namespace_of = namespace_of

    def new_epoch(self) -> None:
        """Nothing that was stored is found any more, loads that are under way fail, and nothing that was computed so
        far will be stored."""
        if self._namespace_of is None:
            return
        self._plan.fail.extend(self._loads)
        self._enter(self._namespace_of(os.urandom(16)))
        for request in self._requests.values():
            request.cacheable = False
            request.let_go()

    def stop(self) -> None:
        """What this engine computes from here on is not what its namespace says: nothing is looked up or stored any
        more. Transfers that were begun end as others do."""
        self._namespace_of = None
        if self._namespace is not None:
            self._client.close_namespace(self._namespace)
            self._namespace = None
        for request in self._requests.values():
            request.let_go()

    # --- a request, in the order of its life

    def begin(self, request_id: str, engine: Any, cacheable: bool) -> None:
        """A request arrived. cacheable: its block hashes name all that its KV depends on."""
        if self._namespace is None and self._namespace_of is not None:
            self._enter(self._namespace_of(b''))
        self._requests[request_id] = _Request(request_id, engine, cacheable)

    def match(self, request_id: str, computed_tokens: int, admission: int) -> tuple[int | None, bool]:
        """Tokens to load beyond the leading `computed_tokens`, and whether that happens beside the engine's steps.
        None: ask again at the next step. Asked again for as long as the engine has no room for the request."""
        request = self._requests.get(request_id)
        if request is None or not self._is_cacheable(request) or self._namespace is None:
            return 0, False
        if admission != request.admission:
            request.readmit(admission)
        if not request.asked:
            self._look_up(request, computed_tokens)
        if request.lease is None:
            return 0, False
        first = computed_tokens // self._block_tokens
        blocks = min(request.lease.matched - first, self._max_loading)
        # More than may be loaded at once is no hit's minimum.
        if blocks < min(-(-request.min_tokens // self._block_tokens), self._max_loading):
            request.let_go()
            return 0, False
        if self._loading > 0 and self._loading + blocks > self._max_loading:
            return None, False
        request.first = first
        return blocks * self._block_tokens, True

    def _is_cacheable(self, request: _Request) -> bool:
        request.cacheable = request.cacheable and self._still_cacheable(request.engine)
        return request.cacheable

    def allocated(self, request_id: str, engine_blocks: list[int], load_tokens: int) -> None:
        """The engine has blocks for the request; `load_tokens` of them are for what `match` promised."""
        request = self._requests.get(request_id)
        if request is None or request.lease is None or self._namespace is None:
            return
        lease, request.lease = request.lease, None
        if load_tokens == 0:
            lease.release()
            return
        first, count = request.first, load_tokens // self._block_tokens
        job = next(self._jobs)
        self._loads[job] = _Load(request, lease, count, self._now())
        self._loading += count
        self._plan.loads.append(LoadJob(job, request_id, self._namespace, lease.id, first,
                                        engine_blocks[first:first + count]))

    def fail_load(self, request_id: str, engine_blocks: list[int], load_tokens: int) -> None:
        """What `match` promised will not come: the workers tell the request, and the engine computes those blocks."""
        request = self._requests.get(request_id)
        if request is None or self._namespace is None or load_tokens == 0:
            return
        first = request.first
        self._plan.loads.append(LoadJob(next(self._jobs), request_id, self._namespace, NO_LEASE, first,
                                        engine_blocks[first:first + load_tokens // self._block_tokens]))

    def preempted(self, request_ids: Iterable[str]) -> None:
        """The engine took their blocks: they may be written from this step on. Some may have finished since."""
        taken = set(request_ids)
        if not taken:
            return
        for job, request in self._stores.items():
            if request.name in taken and job in request.stores:
                self._plan.flush.append(job)
                request.stores.discard(job)

    def computed(self, request_id: str, tokens: int, engine_blocks: Callable[[], list[int]]) -> None:
        """After this step's forward the leading `tokens` of the request have their KV."""
        request = self._requests.get(request_id)
        # First what ends most calls: a step fills a block of few requests.
        if request is None or tokens < (request.handled + 1) * self._block_tokens:
            return
        # With no daemon there the chain waits: a block without its parents would not be found.
        if not (self._is_cacheable(request) and request.may_store and self._namespace and self._client.connected):
            return
        hashes = request.engine.block_hashes
        first, full = request.handled, min(tokens // self._block_tokens, len(hashes))
        if full <= first:
            return
        request.handled = full
        job = next(self._jobs)
        self._plan.stores.append(StoreJob(
            job, self._namespace, [bytes(key) for key in hashes[first:full]],
            bytes(hashes[first - 1]) if first else None, first, request.request, engine_blocks()[first:full]))
        self._stores[job] = request
        request.stores.add(job)

    def finish(self, request_id: str) -> bool:
        """The request is over. True: its engine blocks stay until the worker says that its stores are done."""
        request = self._requests.pop(request_id, None)
        if request is None:
            return False
        request.let_go()
        if not request.stores:
            return False
        self._plan.awaited[request_id] = sorted(request.stores)
        return True

    # --- a step

    def take_plan(self, tokens: int = 0) -> StepPlan:
        """What the workers are to do in this step, which computes that many tokens."""
        if tokens:
            self._steps.append((tokens, self._now()))
        plan, self._plan = self._plan, StepPlan()
        if plan.loads or plan.stores:
            try:
                plan.group = self._client.group
            except Exception:
                # Their requests wait until a worker tells them: without a group it fails the loads, and does.
                log.exception('Kvartal: the engine group is not known; what this step loads is computed')
        return plan

    def step_ended(self) -> None:
        """The workers have answered to the oldest step."""
        if self._steps:
            tokens, begun = self._steps.popleft()
            ended = self._now()
            self._cost.computed(tokens, ended - max(begun, self._step_ended))
            self._step_ended = ended

    def take_report(self, report: StepReport) -> None:
        """What the workers have done."""
        for job in report.failed:
            if job in self._loads:
                self._loads[job].request.handled = 0
                self._loads[job].failed = True
            elif (stored := self._stores.get(job)) is not None and job in stored.stores:
                # The rest of the chain would not be found without these blocks.
                stored.may_store = False
        for job, ranks in report.done.items():
            self._done[job] = self._done.get(job, 0) + ranks
            if self._done[job] < self._ranks:
                continue
            del self._done[job]
            if (load := self._loads.pop(job, None)) is not None:
                load.lease.release()
                self._loading -= load.blocks
                if not load.failed:
                    self._cost.loaded(load.blocks, self._now() - load.begun)
            elif (stored := self._stores.pop(job, None)) is not None:
                stored.stores.discard(job)

    def take_counts(self) -> dict[str, float]:
        """What happened since the last call; see metrics.COUNTERS."""
        counts, self._counts = self._counts, defaultdict(float)
        return dict(counts)

    def close(self) -> None:
        """The engine ends."""
        for request in self._requests.values():
            request.let_go()
        for load in self._loads.values():
            load.lease.release()
        self._requests.clear()
        self._loads.clear()
        self._client.close()

    # --- inside

    def _enter(self, namespace: Namespace) -> None:
        if self._namespace is not None:
            self._client.close_namespace(self._namespace)
        self._namespace = namespace
        log.info('Kvartal: blocks of %d tokens, %d bytes, digest %s', namespace.tokens_per_block, namespace.shard_bytes,
                 namespace.digest.hex()[:16])
        self._say_whether_connected()

    def _look_up(self, request: _Request, computed_tokens: int) -> None:
        request.asked = True
        # The engine has to compute one token at least: with all blocks there it could not go on.
        usable = (request.engine.num_tokens - 1) // self._block_tokens
        request.min_tokens = self._options.min_load_tokens or self._cost.min_tokens()
        if usable * self._block_tokens - computed_tokens < request.min_tokens:
            return
        assert self._namespace is not None
        begun = self._now()
        lease = self._client.lookup(self._namespace, [bytes(key) for key in request.engine.block_hashes[:usable]],
                                    request.engine.num_tokens, self._options.lookup_deadline_ms)
        self._counts['lookups'] += 1
        self._counts['lookup_seconds'] += self._now() - begun
        self._counts['lookups_unanswered'] += self._client.status != Status.OK
        request.request = lease.request
        request.handled = lease.matched
        if lease.matched:
            request.lease = lease
        self._say_whether_connected()

    def _say_whether_connected(self) -> None:
        connected = self._client.connected
        if connected != self._was_connected:
            self._was_connected = connected
            if connected:
                log.info('Kvartal: attached as tenant %s', self._client.tenant)
            else:
                log.warning('Kvartal: no cache for now: %s', self._client.error)
