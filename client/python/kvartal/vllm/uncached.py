"""The connector for a vLLM that is not supported: it looks nothing up, stores nothing, says why in one line, and lets
the engine serve. Of vLLM's interface it needs what every version of it has.
"""
from __future__ import annotations

import functools
import importlib
import logging
import types
from typing import Any

log = logging.getLogger('vllm.kvartal')


class _Uncached:
    """What vLLM asks of a connector, answered for an engine without one. `_reason`: why. `_metadata`: the class of what
    goes to the workers. Any version's arguments do."""

    _reason = ''
    _metadata: type = object

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any = None):
        # Versions before 0.12 have, and give, two arguments.
        given = () if kv_cache_config is None else (kv_cache_config,)
        super().__init__(vllm_config, role, *given)  # type: ignore[call-arg]
        if getattr(role, 'name', '') == 'SCHEDULER':  # it speaks for its workers, once
            log.warning('Kvartal: this engine runs uncached: %s', self._reason)

    @property
    def requires_kv_delivery(self) -> bool:
        """Nobody waits for anything."""
        return False

    def get_num_new_matched_tokens(self, *_: Any, **__: Any) -> tuple[int, bool]:
        """A miss."""
        return 0, False

    def build_connector_meta(self, *_: Any, **__: Any) -> Any:
        """Nothing to do."""
        return self._metadata()

    def request_finished(self, *_: Any, **__: Any) -> tuple[bool, None]:
        """Its blocks are free."""
        return False, None

    request_finished_all_groups = request_finished

    def reset_cache(self) -> bool:
        """There is nothing to forget."""
        return True


def _does_nothing(self: Any, *_: Any, **__: Any) -> None:
    """An abstract method of some version."""


def uncached_connector(reason: str) -> type:
    """A class that vLLM can instantiate, for engines that run uncached for that reason. Raises ImportError for a vLLM
    without connectors, which does not get here."""
    return _class_on(importlib.import_module('vllm.distributed.kv_transfer.kv_connector.v1.base'), reason)


@functools.cache  # vLLM asks for it more than once
def _class_on(base: types.ModuleType, reason: str) -> type:
    bases = [getattr(base, name) for name in ('KVConnectorBase_V1', 'SupportsHMA') if hasattr(base, name)]
    abstract = {name for one in bases for name in getattr(one, '__abstractmethods__', ())}
    body = {name: _does_nothing for name in abstract if not hasattr(_Uncached, name)}
    return types.new_class('KvartalConnector', (_Uncached, *bases), exec_body=lambda namespace: namespace.update(
        body, _reason=reason, _metadata=base.KVConnectorMetadata, __module__=__name__))
