"""The connector for vLLM: `"kv_connector": "KvartalConnector", "kv_connector_module_path": "kvartal.vllm"`.

vLLM itself is imported with the connector, not before: the halves of it are tested without one.
"""
from typing import Any

__all__ = ['KvartalConnector']


def __getattr__(name: str) -> Any:
    if name != 'KvartalConnector':
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    from kvartal.vllm.connector import KvartalConnector
    return KvartalConnector
