"""What the connector counts, on its way from its halves to vLLM's log line and Prometheus endpoint."""
from __future__ import annotations

from collections import Counter
from typing import Any

from prometheus_client import Counter as PrometheusCounter
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

# name in a payload: what it counts. Prometheus adds the prefix vllm:kvartal_ and the suffix _total.
COUNTERS = {
    'lookups': 'prompts whose blocks were looked up',
    'lookups_unanswered': 'lookups that no daemon answered in time: misses',
    'lookup_seconds': 'time that lookups took in the scheduler',
    'loaded_blocks': 'blocks copied from the cache into the engine',
    'failed_blocks': 'blocks that were found and could not be loaded: computed instead',
    'stored_blocks': 'blocks that are in the cache because of this engine, or were there already',
    'skipped_blocks': 'blocks that could not be stored: a limit, a deadline, no daemon, a preemption',
    'uncached': '1 when this engine runs without the cache: see its log',
}


class Stats(KVConnectorStats):
    """Counts since the last time somebody asked."""

    def reset(self) -> None:
        """Back to nothing."""
        self.data: dict[str, Any] = {}

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        """With those of another rank or step."""
        self.data = dict(Counter(self.data) + Counter(other.data))
        return self

    def reduce(self) -> dict[str, int | float]:
        """For the log line."""
        return {name: round(value, 6) for name, value in self.data.items()}

    def is_empty(self) -> bool:
        """Whether there is nothing to tell."""
        return not self.data


class PromMetrics(KVConnectorPromMetrics):
    """The counters at /metrics."""

    def __init__(self, vllm_config: Any, metric_types: dict[Any, Any], labelnames: list[str],
                 per_engine_labelvalues: dict[int, list[object]]):
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        made = {name: metric_types[PrometheusCounter](f'vllm:kvartal_{name}', text, labelnames=labelnames)
                for name, text in COUNTERS.items()}
        self._counters = {engine: {name: counter.labels(*labels) for name, counter in made.items()}
                          for engine, labels in per_engine_labelvalues.items()}

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Adds what one step brought."""
        for name, value in transfer_stats_data.items():
            self._counters[engine_idx][name].inc(value)
