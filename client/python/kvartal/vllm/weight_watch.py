"""Hears of weights that are changed in place. vLLM tells its connector nothing of that, so this stands in front of the
methods of the worker's class that every such change goes through, and only listens.

What it cannot hear is code of the operator's own that runs in the worker (`collective_rpc` with a function).
"""
from __future__ import annotations

import functools
import importlib
import weakref
from typing import Any, Protocol

from kvartal.declined import Declined

# Of vLLM's worker, each before the first byte is changed. `apply_model` hands the model to whatever it is given, and
# what `sleep` lets go comes back as something else.
_METHODS = ('reload_weights', 'reset_weights', 'start_weight_update', 'start_draft_weight_update', 'update_weights',
            'load_model', 'apply_model', 'sleep')


class Watcher(Protocol):
    """Who wants to know."""

    def weights_change(self) -> None:
        """They change now."""


_watchers: weakref.WeakSet[Watcher] = weakref.WeakSet()
_changed = False


def watch(watcher: Watcher, worker_class: str) -> None:
    """Tells it from here on, on the worker's thread. worker_class: the qualified name of the worker's class. Raises
    Declined when weights were changed in this process already, or when that cannot be heard of."""
    module, _, name = worker_class.rpartition('.')
    try:
        worker: Any = getattr(importlib.import_module(module), name)
        methods = {method: getattr(worker, method) for method in _METHODS}
    except (ImportError, AttributeError, ValueError) as error:
        raise Declined(f'whether its weights are changed while it runs cannot be heard of: {error}') from error
    for method, original in methods.items():
        if not hasattr(original, 'tells_kvartal'):
            setattr(worker, method, _telling(original))
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
