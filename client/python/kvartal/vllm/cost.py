"""From how many tokens on a hit is worth its load: what loads and computing take, as this engine measures them.

A load of b blocks takes about `fixed + b * per_block` seconds, from the engine's promise to the report of its last
rank; computing them takes `b * block_tokens / rate`. The least b for which loading is faster is the minimum. Confined
to the scheduler's thread; knows numbers only.
"""
from __future__ import annotations

import math

UNMEASURED_TOKENS = 256  # before there is a measure: what a fast engine needs
MAX_TOKENS = 4096  # longer hits are always loaded: a measure that went wrong has to be found out
MEASURED_STEP_TOKENS = 128  # a step that computes fewer is not bound by computing
TRY_AFTER = 32  # requests without a load: then whatever is found is loaded, to see how that is now
SLOWEST = 4  # times what was to be expected: so much does one load count at most
SHORTEST_S = 0.001  # to be expected of a load, or the first ones would bound all others
_KEEP = 0.9  # of the older samples' weight at each new one


class LoadCost:
    """Averages that forget: half of their weight is in the last seven samples."""

    def __init__(self, block_tokens: int):
        self._block_tokens = block_tokens
        # Of loads: weight, and weighted sums of blocks, seconds, blocks squared, blocks times seconds.
        self._w = self._b = self._s = self._bb = self._bs = 0.0
        self._step_tokens = self._step_s = 0.0
        self._asked = 0  # since the last load

    def loaded(self, blocks: int, seconds: float) -> None:
        """A load ended well."""
        self._asked = 0
        if self._w:
            fixed_s, block_s = self._load_s()
            seconds = min(seconds, SLOWEST * max(fixed_s + blocks * block_s, SHORTEST_S))
        for name, value in (('_w', 1.0), ('_b', blocks), ('_s', seconds), ('_bb', blocks * blocks),
                            ('_bs', blocks * seconds)):
            setattr(self, name, getattr(self, name) * _KEEP + value)

    def computed(self, tokens: int, seconds: float) -> None:
        """A step computed that many tokens."""
        if tokens >= MEASURED_STEP_TOKENS and seconds > 0:
            self._step_tokens = self._step_tokens * _KEEP + tokens
            self._step_s = self._step_s * _KEEP + seconds

    def min_tokens(self) -> int:
        """For the next request: the shortest hit that is worth its load, a multiple of a block."""
        self._asked += 1
        if self._asked > TRY_AFTER:
            return self._block_tokens
        if not self._w or not self._step_tokens:
            return UNMEASURED_TOKENS
        fixed_s, block_s = self._load_s()
        saved_s = self._block_tokens * self._step_s / self._step_tokens - block_s  # by each block more
        tokens = MAX_TOKENS
        if saved_s > 0:
            tokens = min(MAX_TOKENS, max(1, math.ceil(fixed_s / saved_s)) * self._block_tokens)
        return tokens

    def _load_s(self) -> tuple[float, float]:
        """Seconds of a load: fixed, and for each block. When all were of one length they are taken as fixed, which is
        right for that length."""
        blocks, seconds = self._b / self._w, self._s / self._w
        spread = self._bb / self._w - blocks * blocks
        if spread < 0.01:
            return seconds, 0.0
        block_s = min(max(0.0, (self._bs / self._w - blocks * seconds) / spread), seconds / blocks)
        return seconds - block_s * blocks, block_s
