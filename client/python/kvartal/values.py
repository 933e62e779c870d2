"""What a client is called with and answers with: plain values, checked before C sees them."""
from __future__ import annotations

import enum
from dataclasses import dataclass

from kvartal._abi import DIGEST_BYTES


class Status(enum.IntEnum):
    """What a call came to; `kv_status` of kvartal.h."""

    OK = 0
    UNAVAILABLE = 1
    REFUSED = 2
    DENIED = 3
    INVALID_ARGUMENT = 4
    NOT_FOUND = 5
    LOST = 6
    UNSUPPORTED = 7


class Outcome(enum.IntEnum):
    """What became of one key of a reservation."""

    GRANTED = 0
    EXISTS = 1
    REFUSED = 2


class Hint(enum.IntEnum):
    """What may be said of a conversation; `kv_hint_what` of kvartal.h."""

    ENDED = 1
    WAITING = 2


@dataclass(frozen=True)
class Namespace:
    """Blocks of one digest and layout. A value: good for every client, opened at the daemon when first used.

    digest: 32 bytes that name everything that makes KV incompatible. tokens_per_block >= 1. shard_count: node-local
    ranks that store a part of each block, 1 to 64. shard_bytes: bytes of one shard; a block is at most 32 MiB.
    """

    digest: bytes
    tokens_per_block: int
    shard_bytes: int
    shard_count: int = 1

    def __post_init__(self) -> None:
        if len(self.digest) != DIGEST_BYTES:
            raise ValueError(f'a digest has {DIGEST_BYTES} bytes, not {len(self.digest)}')
        check32(tokens_per_block=self.tokens_per_block, shard_bytes=self.shard_bytes, shard_count=self.shard_count)


def check32(most: int = 0xffffffff, **numbers: int) -> None:
    """Raises what the C library cannot: it would get the low bits."""
    for name, number in numbers.items():
        if not 0 <= number <= most:
            raise ValueError(f'{name} is {number}: it has to be from 0 to {most}')


def check64(**numbers: int) -> None:
    check32(0xffffffffffffffff, **numbers)
