"""The connector for vLLM: `"kv_connector": "KvartalConnector", "kv_connector_module_path": "kvartal.vllm"`.

vLLM itself is imported with the connector, not before: the halves of it are tested without one. A vLLM that is not
supported, or lacks a name that the connector needs, gets a connector that says so and declines: its engine serves.
"""
from typing import Any

from kvartal.declined import load_or_decline
from kvartal.vllm import version

__all__ = ['KvartalConnector']


def __getattr__(name: str) -> Any:
    if name != 'KvartalConnector':
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    return load_or_decline(_load, _uncached, f'vLLM {", ".join(version.SUPPORTED_VLLM)}')


def _load() -> Any:
    version.check_version()
    from kvartal.vllm.connector import KvartalConnector
    return KvartalConnector


def _uncached(reason: str) -> Any:
    from kvartal.vllm.uncached import uncached_connector
    return uncached_connector(reason)
