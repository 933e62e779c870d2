"""Whether the vLLM that is installed is one that this connector was tested with. Imports nothing of it but its number.
"""
from __future__ import annotations

from kvartal.declined import Declined

SUPPORTED_VLLM = ('0.32',)


def installed() -> str:
    """The version of the vLLM in this environment."""
    from vllm.version import __version__
    return str(__version__)


def check_version() -> None:
    """Raises Declined for a vLLM that this connector was not tested with."""
    version = installed()
    if not version.startswith(tuple(supported + '.' for supported in SUPPORTED_VLLM)):
        raise Declined(f'vLLM {version} was not tested; supported are {", ".join(SUPPORTED_VLLM)}')
