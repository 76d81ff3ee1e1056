"""Descriptions and bounds of parameters that several dialects have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from infeng_serve.api.dialects import not_supported
from msgspec import Meta

LAST_N = Meta(
    description="-1: all tokens count; 0: no penalty; others have no effect, and are refused with a penalty",
    extra_json_schema={"enum": [-1, 0, None]},
)
"""Over how many of the last tokens a ``repeat_penalty`` counts."""


def only(description: str, values: Sequence[Any]) -> Meta:
    """Return what is said of a parameter that takes some values alone."""
    return Meta(description=description, extra_json_schema={"enum": [*values, None]})


def least(description: str, value: int) -> Meta:
    """Return what is said of a number that has a least value."""
    return Meta(description=description, extra_json_schema={"minimum": value})


def repetition_penalty(penalty: float | None, last: int | None, path: str) -> float | None:
    """Return ``repetition_penalty`` of chat; raises ApiError for one over a part of the tokens. path: of ``last``."""
    if last == 0:
        return 1.0
    if last not in (None, -1) and penalty not in (None, 1.0):
        raise not_supported(path, "a repeat_penalty counts all tokens here: give -1, or presence_penalty instead")
    return penalty
