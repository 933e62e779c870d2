"""Leases between the question how much of a prompt is stored and the copying of it: SGLang asks on one thread, copies
on another, in parts and from any place on, and often does not come at all.

Any thread. Invariant: a lease is taken by one copier at a time, and is given back within KEPT_S of its last use.
"""
from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from kvartal import Lease

KEPT_S = 10.0  # a prefetch that waited longer for the engine asks again
KEPT_MAX = 64  # prompts; the oldest goes first


@dataclass(frozen=True)
class Found:
    """A lease on the leading blocks of a chain, and the place of each key in it."""

    lease: Lease
    places: dict[bytes, int]

    def has(self, key: bytes) -> bool:
        """Whether that key's block is leased still: a long prompt gives its front back while the rest is loaded."""
        place = self.places.get(key)
        return place is not None and place >= self.lease.front


class KeptLeases:
    """See the module."""

    def __init__(self, now: Callable[[], float] = time.monotonic):
        self._now = now
        self._changed = threading.Condition()
        self._kept: deque[tuple[float, Found]] = deque()  # guarded by _changed, as what follows; oldest first
        self._closed = False
        self._thread = threading.Thread(target=self._run, name='kvartal-leases', daemon=True)
        self._thread.start()

    def keep(self, found: Found) -> None:
        """From here on somebody may take it."""
        with self._changed:
            self._kept.append((self._now() + KEPT_S, found))
            too_old = [self._kept.popleft()[1]] if len(self._kept) > KEPT_MAX else []
            self._changed.notify_all()
        _release(too_old)

    def take(self, key: bytes) -> Found | None:
        """The newest that has that key. The caller keeps it again, or releases it."""
        with self._changed:
            for i in reversed(range(len(self._kept))):
                found = self._kept[i][1]
                if found.has(key):
                    del self._kept[i]
                    return found
        return None

    def drop_all(self) -> None:
        """Gives every lease back."""
        with self._changed:
            dropped = [found for _, found in self._kept]
            self._kept.clear()
        _release(dropped)

    def close(self) -> None:
        """Gives every lease back, and ends the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()
        self.drop_all()

    def expire(self) -> float | None:
        """Gives back what was not taken in time. Seconds until the next one's time; None: there is none."""
        with self._changed:
            expired = []
            while self._kept and self._kept[0][0] <= self._now():
                expired.append(self._kept.popleft()[1])
            left = self._kept[0][0] - self._now() if self._kept else None
        _release(expired)
        return left

    def _run(self) -> None:
        while True:
            left = self.expire()
            with self._changed:
                if self._closed:
                    return
                if left is not None or not self._kept:
                    self._changed.wait(left)
                if self._closed:
                    return


def _release(found: list[Found]) -> None:
    for one in found:
        one.lease.release()
