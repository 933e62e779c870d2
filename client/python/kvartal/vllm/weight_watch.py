"""Hears of weights that vLLM changes in place.

What it cannot hear is code of the operator's own that runs in the worker (`collective_rpc` with a function).
"""
from __future__ import annotations

import importlib

from kvartal import weights_change
from kvartal.declined import Declined

# Of vLLM's worker, each before the first byte is changed. `apply_model` hands the model to whatever it is given, and
# what `sleep` lets go comes back as something else.
_METHODS = ('reload_weights', 'reset_weights', 'start_weight_update', 'start_draft_weight_update', 'update_weights',
            'load_model', 'apply_model', 'sleep')


def watch(watcher: weights_change.Watcher, worker_class: str) -> None:
    """Tells it from here on; see weights_change. worker_class: the qualified name of the worker's class."""
    module, _, name = worker_class.rpartition('.')
    try:
        worker = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise Declined(f'whether its weights are changed while it runs cannot be heard of: {error}') from error
    weights_change.watch(watcher, worker, _METHODS)
