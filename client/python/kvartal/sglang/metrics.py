"""What the backend counts, at SGLang's Prometheus endpoint."""
from __future__ import annotations

import functools
import threading
from collections import Counter
from collections.abc import Mapping
from typing import Any

# name: what it counts. Prometheus adds the prefix sglang:kvartal_ and the suffix _total.
COUNTERS = {
    'lookups': 'prompts whose pages were looked up',
    'lookups_unanswered': 'lookups that no daemon answered in time: misses',
    'lookup_seconds': 'time that lookups took',
    'loaded_pages': 'pages copied from the cache into the host pool',
    'failed_pages': 'pages that were asked for and could not be loaded: computed instead',
    'stored_pages': 'pages that are in the cache because of this engine, or were there already',
    'skipped_pages': 'pages that could not be stored: a limit, a deadline, no daemon',
    'uncached': '1 when this engine runs without the cache: see its log',
}


@functools.cache  # a process registers a name once, however often a backend is attached
def _made(labels: tuple[str, ...]) -> dict[str, Any]:
    from prometheus_client import Counter as PrometheusCounter
    return {name: PrometheusCounter(f'sglang:kvartal_{name}', text, labelnames=labels)
            for name, text in COUNTERS.items()}


class Counts:
    """Any thread may add. `totals` since the start. labels: of this rank, for Prometheus; None: there is none."""

    def __init__(self, labels: Mapping[str, Any] | None = None):
        self._lock = threading.Lock()
        self.totals: Counter[str] = Counter()
        self._shown = {}
        if labels is not None:
            self._shown = {name: counter.labels(**labels) for name, counter in _made(tuple(labels)).items()}

    @classmethod
    def of_rank(cls, config: Any) -> Counts:
        """For a rank with that configuration of SGLang's storage."""
        if not getattr(config, 'enable_storage_metrics', False):
            return cls()
        return cls({'tp_rank': config.tp_rank, 'dp_rank': getattr(config, 'dp_rank', 0)})  # older versions have no dp

    def add(self, name: str, value: float) -> None:
        """To one of COUNTERS."""
        if not value:
            return
        with self._lock:
            self.totals[name] += value  # type: ignore[assignment]
        if name in self._shown:
            self._shown[name].inc(value)
