"""KvartalConnector: the thin shell that vLLM sees. It finds out whether this engine can be served, and hands every call
to the scheduler's or the worker's half.

Rules of the shell: nothing is ever raised into the engine; one log line says why an engine runs uncached; after an
exception no more is looked up or stored, and transfers that were begun are still told.
"""
from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1, KVConnectorHandshakeMetadata, KVConnectorMetadata, KVConnectorRole, KVConnectorWorkerMetadata,
    SupportsHMA)
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from kvartal import Client
from kvartal.declined import Declined
from kvartal.vllm import identity, version, weight_watch
from kvartal.vllm.metrics import PromMetrics, Stats
from kvartal.vllm.options import Options
from kvartal.vllm.pages import HostPages, geometry_of
from kvartal.vllm.plan import StepPlan, StepReport
from kvartal.vllm.scheduler import SchedulerSide
from kvartal.vllm.worker import Results, WorkerSide

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.forward_context import ForwardContext
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

log = logging.getLogger('vllm.kvartal')
Call = TypeVar('Call', bound=Callable[..., Any])


@dataclass
class Metadata(KVConnectorMetadata):
    """A plan on its way to the workers."""

    plan: StepPlan = field(default_factory=StepPlan)


@dataclass
class WorkerMetadata(KVConnectorWorkerMetadata):
    """A report on its way to the scheduler."""

    report: StepReport = field(default_factory=StepReport)

    def aggregate(self, other: KVConnectorWorkerMetadata) -> WorkerMetadata:
        """Of two ranks."""
        assert isinstance(other, WorkerMetadata)
        return WorkerMetadata(self.report.merged(other.report))


@dataclass
class Handshake(KVConnectorHandshakeMetadata):
    """What a worker tells the scheduler at start: how its pages look, or why it cannot serve."""

    facts: dict[str, Any] = field(default_factory=dict)
    declined: str = ''


def _never_raises(otherwise: Callable[[], Any]) -> Callable[[Call], Call]:
    """An exception of ours would end the engine: it is logged, and the engine goes on as if there were no cache."""
    def wrap(method: Call) -> Call:
        @functools.wraps(method)
        def guarded(self: KvartalConnector, *args: Any, **kwargs: Any) -> Any:
            try:
                return method(self, *args, **kwargs)
            except Exception:
                if not self._broken:
                    log.exception('Kvartal: %s failed; this engine runs uncached from here on', method.__name__)
                    self._broken = self._tell_uncached = True
                return otherwise()
        return guarded  # type: ignore[return-value]
    return wrap


class KvartalConnector(KVConnectorBase_V1, SupportsHMA):
    """KV blocks of this node's cache for one vLLM engine; see docs/VLLM.md for the flags."""

    _cache_hit_source = CacheHitSource.HOST

    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig):
        super().__init__(vllm_config, role, kv_cache_config)
        self._kv = kv_cache_config
        self._broken = False
        self._scheduler: SchedulerSide | None = None
        self._worker: WorkerSide | None = None
        self._tell_uncached = False
        self._declined = ''
        self._facts: tuple[Any, ...] | None = None
        self._results = Results()
        self._forward = False
        self._options = Options()
        try:
            version.check_version()
            self._options = Options.parse(self._kv_transfer_config.kv_connector_extra_config)
            identity.check_config(vllm_config, kv_cache_config)
            if role == KVConnectorRole.SCHEDULER:
                self._scheduler = SchedulerSide(
                    Client(self._options.socket, 'vllm scheduler'), self._options,
                    vllm_config.cache_config.block_size, kv_cache_config.num_blocks,
                    ranks=vllm_config.parallel_config.world_size,
                    still_cacheable=identity.is_cacheable)
        except Declined as reason:
            self._decline(str(reason))
        except Exception as error:
            log.exception('Kvartal: starting failed')
            self._decline(f'{type(error).__name__}: {error}')

    def _decline(self, reason: str) -> None:
        self._declined = reason
        # The scheduler speaks for its workers, once.
        if self._role == KVConnectorRole.SCHEDULER:
            log.warning('Kvartal: this engine runs uncached: %s', reason)
            self._tell_uncached = True
        self._scheduler = None
        self._worker = None

    @_never_raises(lambda: None)
    def weights_change(self) -> None:
        """From here on KV is not what the digest says. In the worker, on its thread, before the first byte changes."""
        if self._worker is not None:
            self._worker.weights_change()

    @property
    def requires_kv_delivery(self) -> bool:
        """A cache: a store that is dropped is a miss later, and nobody waits for it."""
        return False

    # --- worker

    @_never_raises(lambda: None)
    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """The engine has allocated its pages."""
        if self._declined:
            return
        names = self._kv.kv_cache_groups[0].layer_names
        if set(names) != set(kv_caches):
            return self._decline(f'the KV cache is of {sorted(kv_caches)}, its group of blocks of {sorted(names)}')
        try:
            # In the order that the digest names: a block's bytes are its layers in that order.
            geometry = geometry_of({name: kv_caches[name] for name in names}, self._kv.num_blocks)
            weight_watch.watch(self, self._vllm_config.parallel_config.worker_cls)
        except Declined as reason:
            return self._decline(str(reason))
        self._worker = WorkerSide(lambda group: Client(self._options.socket, 'vllm worker', group,
                                                       self._options.store_deadline_ms),
                                  self._options, HostPages(geometry, kv_caches),
                                  shard=self._vllm_config.parallel_config.rank)
        self._facts = (geometry, kv_caches[names[0]])  # last: with them the scheduler is told that this worker serves

    @_never_raises(lambda: None)
    def get_handshake_metadata(self) -> KVConnectorHandshakeMetadata | None:
        """Once, after the pages are registered."""
        if self._facts is None:
            return Handshake(declined=self._declined or 'the worker has no KV cache')
        try:
            return Handshake(identity.worker_facts(self._vllm_config, self._kv, *self._facts))
        except Declined as reason:
            return Handshake(declined=str(reason))

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        """Begins a step."""
        super().bind_connector_metadata(connector_metadata)
        self._forward = False

    def _plan_of_step(self) -> StepPlan:
        metadata = self._connector_metadata
        return metadata.plan if isinstance(metadata, Metadata) else StepPlan()

    @_never_raises(lambda: None)
    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        """Before blocks that were taken from requests are written."""
        if self._worker is not None and isinstance(kv_connector_metadata, Metadata):
            self._worker.flush(kv_connector_metadata.plan.flush)

    @_never_raises(lambda: None)
    def start_load_kv(self, forward_context: ForwardContext, **kwargs: Any) -> None:
        """Loads go on beside the engine's steps."""
        self._forward = forward_context.attn_metadata is not None
        if self._worker is not None:
            self._worker.submit(self._plan_of_step())

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Loads are whole blocks, done before their request is scheduled."""

    def save_kv_layer(self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any) -> None:
        """Stores are whole blocks, begun after the forward."""

    @_never_raises(lambda: None)
    def wait_for_save(self) -> None:
        """The forward has ended: on a CPU its pages are written when it returns."""
        if self._worker is not None:
            self._worker.submit_stores(self._plan_of_step())

    @_never_raises(lambda: (None, None))
    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        """Requests whose transfers ended."""
        if self._worker is None:
            return None, None
        self._results = self._worker.results(idle=not self._forward)
        return self._results.sent or None, self._results.received or None

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Of the requests that the last get_finished told as received."""
        return self._results.failed_blocks

    def build_connector_worker_meta(self) -> KVConnectorWorkerMetadata | None:
        """What the scheduler's half has to know of this step."""
        results, self._results = self._results, Results()
        report = results.report
        return WorkerMetadata(report) if report.done or report.weights_changed else None

    # --- scheduler

    @_never_raises(lambda: None)
    def set_xfer_handshake_metadata(self, metadata: dict[int, KVConnectorHandshakeMetadata]) -> None:
        """The workers are ready: this is where the cache is opened."""
        if self._scheduler is None:
            return
        facts: dict[int, dict[str, Any]] = {}
        for rank, handshake in metadata.items():
            # MultiConnector hands each of its connectors what the first one's workers told.
            if not isinstance(handshake, Handshake):
                return self._decline(f'a worker answered with {type(handshake).__name__}: with other connectors in a '
                                     'MultiConnector it is not supported')
            if handshake.declined:
                return self._decline(handshake.declined)
            facts[rank] = handshake.facts
        try:
            by_rank = identity.check_ranks(self._vllm_config, facts)
            weights = identity.weights_digest(self._vllm_config, self._options)
        except Declined as reason:
            return self._decline(str(reason))
        self._scheduler.open(functools.partial(identity.namespace_of, self._vllm_config, by_rank, weights))

    @_never_raises(lambda: None)
    def on_new_request(self, request: Request) -> None:
        """A request arrived."""
        if self._scheduler is not None and not self._broken:
            self._scheduler.begin(request.request_id, request, identity.is_cacheable(request))

    @_never_raises(lambda: (0, False))
    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        """How much of the prompt can be loaded."""
        if self._scheduler is None or self._broken or request.skip_reading_prefix_cache:
            return 0, False
        return self._scheduler.match(request.request_id, num_computed_tokens, request.num_preemptions)

    @_never_raises(lambda: None)
    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        """The engine has blocks for a request."""
        if self._scheduler is None:
            return
        engine_blocks = blocks.get_block_ids()[0]
        try:
            self._scheduler.allocated(request.request_id, engine_blocks, num_external_tokens)
        except Exception:
            # The request waits until a worker tells it.
            self._scheduler.fail_load(request.request_id, engine_blocks, num_external_tokens)
            raise

    @_never_raises(Metadata)
    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:
        """Ends the scheduling of a step."""
        if self._scheduler is None:
            return Metadata()
        self._plan_flush(self._scheduler, scheduler_output)
        if not self._broken:
            self._plan_stores(self._scheduler, scheduler_output)
        return Metadata(self._scheduler.take_plan(sum(scheduler_output.num_scheduled_tokens.values())))

    # Apart, both: should one break, the loads of this step are begun all the same.
    @_never_raises(lambda: None)
    def _plan_flush(self, side: SchedulerSide, out: SchedulerOutput) -> None:
        side.preempted(out.preempted_req_ids or ())

    @_never_raises(lambda: None)
    def _plan_stores(self, side: SchedulerSide, out: SchedulerOutput) -> None:
        def blocks_of(request_id: str) -> list[int]:
            blocks: list[int] = out.kv_connector_block_state.resolve_block_ids(request_id)[0]
            return blocks

        cached = out.scheduled_cached_reqs
        scheduled = [(new.req_id, new.num_computed_tokens) for new in out.scheduled_new_reqs]
        scheduled += zip(cached.req_ids, cached.num_computed_tokens)
        for request_id, computed in scheduled:
            side.computed(request_id, computed + out.num_scheduled_tokens[request_id],
                          functools.partial(blocks_of, request_id))

    @_never_raises(lambda: None)
    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        """The workers have answered."""
        report = connector_output.kv_connector_worker_meta
        if self._scheduler is None:
            return
        self._scheduler.step_ended()
        if not isinstance(report, WorkerMetadata):
            return
        self._scheduler.take_report(report.report)
        if report.report.weights_changed and not self._declined:
            # The half stays: what it began, it has to end.
            self._declined = 'its weights were changed while it ran: restart it'
            log.warning('Kvartal: this engine runs uncached: %s', self._declined)
            self._tell_uncached = True
            self._scheduler.stop()

    def request_finished(self, request: Request, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        """A request is over."""
        return self.request_finished_all_groups(request, (block_ids,))

    @_never_raises(lambda: (False, None))
    def request_finished_all_groups(self, request: Request,
                                    block_ids: tuple[list[int], ...]) -> tuple[bool, dict[str, Any] | None]:
        """A request is over; True: its blocks stay until get_finished names it."""
        return self._scheduler is not None and self._scheduler.finish(request.request_id), None

    @_never_raises(lambda: False)
    def reset_cache(self) -> bool:
        """The engine's weights may have changed: what was stored under them is not found again."""
        if self._scheduler is not None:
            self._scheduler.new_epoch()
        return True

    # --- metrics of both

    @_never_raises(lambda: None)
    def get_kv_connector_stats(self) -> Stats | None:
        """Counts since the last call."""
        side = self._worker or self._scheduler
        counts = side.take_counts() if side is not None else {}
        if self._tell_uncached:
            counts['uncached'] = 1
            self._tell_uncached = False
        return Stats(counts) if counts else None

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> Stats:
        """From a payload."""
        return Stats(data or {})

    @classmethod
    def build_prom_metrics(cls, vllm_config: VllmConfig, metric_types: dict[Any, Any], labelnames: list[str],
                           per_engine_labelvalues: dict[int, list[object]]) -> PromMetrics:
        """Registered once, where /metrics is served."""
        return PromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    @_never_raises(lambda: None)
    def shutdown(self) -> None:
        """The engine ends."""
        if self._worker is not None:
            self._worker.close()
        if self._scheduler is not None:
            self._scheduler.close()
