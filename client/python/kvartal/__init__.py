"""The KV cache of this node: a client of kvartald over libkvartal.

`kvartal.Client` is what everything else stands on. `kvartal.vllm` holds the connector for vLLM and imports vLLM,
`kvartal.sglang` the storage backend for SGLang and imports SGLang; this package itself needs numpy alone.
"""
from kvartal.client import Client, Lease, Slots
from kvartal.values import Hint, Namespace, Outcome, Status

__all__ = ['Client', 'Hint', 'Lease', 'Namespace', 'Outcome', 'Slots', 'Status']
__version__ = '0.1.0'
