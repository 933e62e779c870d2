"""What the scheduler's half of the connector tells the worker's half in a step, and what comes back. Plain values that
pickle; neither half knows the other in any other way.

A *job* is one transfer, numbered by the scheduler: a request may have several, before and after a preemption.
"""
from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from kvartal import Namespace

NO_LEASE = 0


@dataclass(frozen=True)
class LoadJob:
    """Copy blocks of a lease into engine blocks: place `first + i` of the chain goes to `blocks[i]`. With NO_LEASE it
    fails, and only tells the request."""

    job: int
    request_id: str
    namespace: Namespace
    lease: int
    first: int
    blocks: list[int]


@dataclass(frozen=True)
class StoreJob:
    """Copy engine blocks into the cache: `blocks[i]` holds the KV of `keys[i]`, at place `depth + i` of its chain."""

    job: int
    namespace: Namespace
    keys: list[bytes]
    parent: bytes | None
    depth: int
    request: int
    blocks: list[int]

    def without_head(self, blocks: int) -> StoreJob:
        """What is left when the first `blocks` are done."""
        return replace(self, keys=self.keys[blocks:], parent=self.keys[blocks - 1], depth=self.depth + blocks,
                       blocks=self.blocks[blocks:])


@dataclass
class StepPlan:
    """group: the engine group to attach to for these jobs. flush: stores whose engine blocks are overwritten from this
    step on. awaited: finished requests whose engine blocks stay until these stores are done. fail: loads of KV that is
    not to be used any more, of earlier steps and of this one."""

    group: bytes | None = None
    loads: list[LoadJob] = field(default_factory=list)
    stores: list[StoreJob] = field(default_factory=list)
    flush: list[int] = field(default_factory=list)
    awaited: dict[str, list[int]] = field(default_factory=dict)
    fail: list[int] = field(default_factory=list)


@dataclass
class StepReport:
    """Jobs that ended since the last report, each with the number of ranks that say so; `failed` are loads and stores
    that were not done in full. weights_changed: the engine's weights are not those that its digest names any more."""

    done: Counter[int] = field(default_factory=Counter)
    failed: set[int] = field(default_factory=set)
    weights_changed: bool = False

    def merged(self, other: StepReport) -> StepReport:
        """The report of two ranks."""
        return StepReport(self.done + other.done, self.failed | other.failed,
                          self.weights_changed or other.weights_changed)
