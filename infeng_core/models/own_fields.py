"""Fields of a model that only its family knows: ``ModelConfig.own``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from infeng_core.errors import ModelError
from infeng_core.models.families import families
from infeng_core.models.typed_fields import Fields, show

Plain = bool | int | float | str | tuple[Any, ...]
"""A value of a field; values in a tuple are plain too."""


def read_own(family: str, given: Mapping[str, Any], source: Path | str, remedy: str = "") -> Mapping[str, Plain]:
    """Return the own fields of a model as ``own(fields)`` of its family reads them from ``given``, by name.

    Raises ModelError for a field that the family does not read, and for a value that is not plain.
    """
    fields = Fields(given, source, remedy=remedy, prefix="model.own.")
    found: Any = getattr(families().get(family), "own", lambda _: {})(fields)
    is_mapping = isinstance(found, Mapping) and all(isinstance(name, str) for name in found)
    if not is_mapping or not all(map(_is_plain, found.values())):
        why = f"its own fields are {show(found)}: they must be plain values by their names"
        raise ModelError(f"family {family}", why, "correct the family")
    fields.only(*found)
    return MappingProxyType(dict(sorted(found.items())))


def written_own(family: str, own: Mapping[str, Plain]) -> dict[str, Any]:
    """Return the fields that differ from the family's defaults as plain data, lists in place of tuples.

    A model that was written before its family had a field therefore keeps its id.
    """
    usual = read_own(family, {}, f"family {family}")
    return {name: _listed(value) for name, value in own.items() if value != usual.get(name)}


def _is_plain(value: object) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value))


def _listed(value: Plain) -> Any:
    return [_listed(one) for one in value] if isinstance(value, tuple) else value
