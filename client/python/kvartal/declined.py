"""The word for what a connector does not do, and how it reads the options of its configuration."""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any, TypeVar

Kind = TypeVar('Kind')


class Declined(Exception):
    """Why this engine runs uncached. Never an error of the engine."""


def load_or_decline(load: Callable[[], Any], uncached: Callable[[str], Any], supported: str) -> Any:
    """The class that `load` imports; where the engine's version is declined, or lacks a name, what `uncached` makes of
    the reason. supported: the engine and its versions."""
    try:
        return load()
    except Declined as reason:
        return uncached(str(reason))
    except Exception as error:  # whatever an import raises
        return uncached(f'{type(error).__name__}: {error}; supported are {supported}')


def parse_options(kind: type[Kind], given: Mapping[str, Any] | None, where: str, whole: Sequence[str]) -> Kind:
    """A dataclass `kind` of what was `given`; `whole` names its numbers of at least 1. Raises Declined for an unknown
    key or a value of the wrong kind."""
    known = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    given = dict(given or {})
    if unknown := sorted(set(given) - known):
        raise Declined(f'{where} has unknown keys {unknown}; known are {sorted(known)}')
    options = kind(**given)
    for name in whole:
        value = getattr(options, name)
        if type(value) is not int or value < 1:
            raise Declined(f'{name} is {value!r}: a whole number of at least 1 is needed')
    return options
