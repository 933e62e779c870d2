"""Hears of weights that are changed in place. SGLang tells its storage nothing of that, so this stands in front of the
one method that every such change goes through, and only listens.
"""
from __future__ import annotations

import functools
import weakref
from typing import Any, Protocol

from sglang.srt.managers.scheduler_components.weight_updater import SchedulerWeightUpdaterManager as Updater

from kvartal.declined import Declined

_METHOD = '_select_runners'  # of all kinds of updates, before the first byte is changed


class Watcher(Protocol):
    """Who wants to know."""

    def weights_change(self) -> None:
        """They change now."""


_watchers: weakref.WeakSet[Watcher] = weakref.WeakSet()
_changed = False


def watch(watcher: Watcher) -> None:
    """Tells it from here on. Raises Declined when weights were changed already, or when that cannot be heard of."""
    method = getattr(Updater, _METHOD, None)
    if method is None:
        raise Declined('whether its weights are changed while it runs cannot be heard of')
    if not hasattr(method, 'tells_kvartal'):
        setattr(Updater, _METHOD, _telling(method))
    if _changed:
        raise Declined('its weights were changed while it ran: restart it')
    _watchers.add(watcher)


def _telling(method: Any) -> Any:
    @functools.wraps(method)
    def telling(*args: Any, **kwargs: Any) -> Any:
        global _changed
        _changed = True
        for watcher in list(_watchers):
            watcher.weights_change()
        return method(*args, **kwargs)

    telling.tells_kvartal = True  # type: ignore[attr-defined]
    return telling
