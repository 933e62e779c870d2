"""What `kv_connector_extra_config` may hold."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvartal.declined import Declined, parse_options


@dataclass(frozen=True)
class Options:
    """Times in milliseconds. Every key has a default, an unknown one is declined.

    socket: of the daemon; None: $KVARTAL_SOCKET, else /run/kvartal/kvartal.sock.
    lookup_deadline_ms: the longest a request waits for the answer what is cached; a miss after that.
    load_deadline_ms: the longest a request waits for its load, other loads before it included; its blocks are computed
        after that.
    store_deadline_ms: the longest a store waits for slots; it is skipped after that.
    min_load_tokens: a shorter hit is not worth the steps that a load takes; None: measured while the engine runs.
    max_loading_share: the part of the engine's blocks that loads may hold at once.
    weights_digest: names the weights where they cannot be read from the model's folder, or reading takes too long.
    """

    socket: str | None = None
    lookup_deadline_ms: int = 5
    load_deadline_ms: int = 2000
    store_deadline_ms: int = 500
    min_load_tokens: int | None = None
    max_loading_share: float = 0.5
    weights_digest: str | None = None

    @staticmethod
    def parse(given: Mapping[str, Any] | None) -> Options:
        """Raises Declined for an unknown key or a value of the wrong kind."""
        options = parse_options(Options, given, 'kv_connector_extra_config',
                                ('lookup_deadline_ms', 'load_deadline_ms', 'store_deadline_ms'))
        if (least := options.min_load_tokens) is not None and (type(least) is not int or least < 1):
            raise Declined(f'min_load_tokens is {least!r}: a whole number of at least 1 is needed, or none at all')
        if not 0 < options.max_loading_share <= 1:
            raise Declined(f'max_loading_share is {options.max_loading_share!r}: more than 0 and at most 1 is needed')
        return options
