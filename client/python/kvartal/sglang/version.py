"""Whether the SGLang that is installed is one that this backend was tested with. Imports nothing of it but its number.
"""
from __future__ import annotations

from kvartal.declined import Declined

SUPPORTED_SGLANG = ('0.5.23',)


def installed() -> str:
    """The version of the SGLang in this environment."""
    import sglang
    return str(sglang.__version__)


def check_version() -> None:
    """Raises Declined for an SGLang that this backend was not tested with."""
    version = installed()
    if version not in SUPPORTED_SGLANG:
        raise Declined(f'SGLang {version} was not tested; supported are {", ".join(SUPPORTED_SGLANG)}')
