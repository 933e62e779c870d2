"""What the object `kvartal` of `--hicache-storage-backend-extra-config` may hold."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvartal.declined import Declined, parse_options


@dataclass(frozen=True)
class Options:
    """Times in milliseconds. Every key has a default, an unknown one is declined.

    socket: of the daemon; None: $KVARTAL_SOCKET, else /run/kvartal/kvartal.sock.
    lookup_deadline_ms: the longest a prefetch waits for the answer what is cached; a miss after that.
    load_deadline_ms: the longest the copying of one batch of pages takes; what is not there by then is computed.
    store_deadline_ms: the longest a store waits for slots; it is skipped after that.
    weights_digest: names the weights where they cannot be read from the model's folder, or reading takes too long.
    """

    socket: str | None = None
    lookup_deadline_ms: int = 100
    load_deadline_ms: int = 2000
    store_deadline_ms: int = 500
    weights_digest: str | None = None

    @staticmethod
    def parse(extra: Mapping[str, Any] | None) -> Options:
        """Of SGLang's whole extra configuration. Raises Declined for an unknown key or a value of the wrong kind."""
        given = (extra or {}).get('kvartal')
        if given is not None and not isinstance(given, Mapping):
            raise Declined(f'"kvartal" of the extra configuration is {given!r}: an object is needed')
        return parse_options(Options, given, '"kvartal" of the extra configuration',
                             ('lookup_deadline_ms', 'load_deadline_ms', 'store_deadline_ms'))
