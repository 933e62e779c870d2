"""Hears of weights that SGLang changes in place."""
from __future__ import annotations

from sglang.srt.managers.scheduler_components.weight_updater import SchedulerWeightUpdaterManager

from kvartal import weights_change

_METHODS = ('_select_runners',)  # of all kinds of updates, before the first byte is changed


def watch(watcher: weights_change.Watcher) -> None:
    """Tells it from here on; see weights_change."""
    weights_change.watch(watcher, SchedulerWeightUpdaterManager, _METHODS)
