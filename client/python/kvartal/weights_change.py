"""Hears of weights that an engine changes in place. Engines tell their caches nothing of that, so this stands in front
of the methods that every such change goes through, and only listens.

A process has one engine: after the first change no watcher of it is taken any more.
"""
from __future__ import annotations

import functools
import weakref
from collections.abc import Iterable
from typing import Any, Protocol

from kvartal.declined import Declined


class Watcher(Protocol):
    """Who wants to know."""

    def weights_change(self) -> None:
        """They change now."""


_watchers: weakref.WeakSet[Watcher] = weakref.WeakSet()
_changed = False


def watch(watcher: Watcher, owner: type, methods: Iterable[str]) -> None:
    """Tells it from here on, on the thread that changes them, before the first byte is changed. owner: the engine's
    class with those methods. Raises Declined when weights were changed in this process already, or when one of the
    methods is not there: that cannot be heard of."""
    for name in methods:
        method = getattr(owner, name, None)
        if method is None:
            raise Declined('whether its weights are changed while it runs cannot be heard of: '
                           f'{owner.__name__} has no {name}')
        if not hasattr(method, 'tells_kvartal'):
            setattr(owner, name, _telling(method))
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
