"""Bounds on schemas and expressions: within llguidance's own limits, compiling some of them takes minutes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, NoReturn

from infeng_core.api import RequestError

MOST_COUNT = 20_000
"""Largest repetition, length, number of items, and multipleOf without its decimal point: each may become a state."""

MOST_PATTERN = 1 << 13
"""Most characters of a regular expression; compiling takes time quadratic in it."""

MOST_PROPERTIES = 1000
"""Most properties of one object."""

MOST_BRANCHES = 500
"""Most branches of one anyOf, oneOf or allOf."""

_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_BRANCHES = ("anyOf", "oneOf", "allOf")
_NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_VALUES = ("enum", "const", "default", "examples", "example")
_REPEATS = re.compile(r"\{\s*(\d*)\s*,?\s*(\d*)\s*\}|~\s*(\d+)(?:\s*\.\.\s*(\d+))?")


def check_pattern(kind: str, pattern: str) -> None:
    """Raise RequestError for a regular expression that is too long or repeats too often."""
    if len(pattern) > MOST_PATTERN:
        _refuse(kind, f"a pattern has {len(pattern)} characters", f"give at most {MOST_PATTERN}")
    check_repeats(kind, pattern)


def check_repeats(kind: str, text: str) -> None:
    """Raise RequestError for a repetition such as ``{1,1000000}``."""
    for match in _REPEATS.finditer(text):
        for count in match.groups():
            if count and (len(count) > 9 or int(count) > MOST_COUNT):
                _refuse(kind, f"it repeats {count[:20]} times", f"repeat at most {MOST_COUNT} times")


def check_schema(kind: str, schema: Any) -> None:
    """Raise RequestError for a schema that would take too long to compile."""
    for one in _schemas(schema):
        for name in _COUNTS:
            if isinstance(value := one.get(name), int | float) and value > MOST_COUNT:
                _refuse(kind, f"{name} is {value}", f"give at most {MOST_COUNT}, or leave it out")
        multiple = one.get("multipleOf")
        if isinstance(multiple, int | float) and _digits(multiple) > MOST_COUNT:
            _refuse(kind, f"multipleOf is {multiple}", f"give at most {MOST_COUNT} without its decimal point")
        if isinstance(properties := one.get("properties"), dict) and len(properties) > MOST_PROPERTIES:
            _refuse(kind, f"an object has {len(properties)} properties", f"give at most {MOST_PROPERTIES}")
        for name in _BRANCHES:
            if isinstance(branches := one.get(name), list) and len(branches) > MOST_BRANCHES:
                _refuse(kind, f"{name} has {len(branches)} branches", f"give at most {MOST_BRANCHES}")
        patterns = [one.get("pattern"), *_keys(one.get("patternProperties"))]
        for pattern in patterns:
            if isinstance(pattern, str):
                check_pattern(kind, pattern)


def embedded(lark: str) -> Iterator[Any]:
    """Yield the schemas of ``%json`` in a Lark grammar."""
    for match in re.finditer(r"%json\s*", lark):
        try:
            yield json.JSONDecoder().raw_decode(lark, match.end())[0]
        except (ValueError, RecursionError):  # llguidance reports it
            continue


def _schemas(schema: Any) -> Iterator[dict[str, Any]]:
    """Yield a schema and every schema within it; names of properties are not taken for keywords."""
    left: list[tuple[Any, bool]] = [(schema, False)]
    while left:
        value, is_named = left.pop()
        if isinstance(value, list):
            left += [(item, False) for item in value]
        elif isinstance(value, dict):
            if not is_named:
                yield value
            left += [
                (item, not is_named and key in _NAMED) for key, item in value.items() if is_named or key not in _VALUES
            ]


def _digits(value: float) -> int:
    """Return the digits of a number as an integer, at most MOST_COUNT + 1, which also stands for inf and nan."""
    number = Decimal(repr(value))
    if not number.is_finite():
        return MOST_COUNT + 1
    exponent = number.as_tuple().exponent
    assert isinstance(exponent, int)
    return int(min(abs(number).scaleb(max(0, -exponent)), Decimal(MOST_COUNT + 1)))


def _keys(value: Any) -> list[str]:
    return list(value) if isinstance(value, dict) else []


def _refuse(kind: str, why: str, remedy: str) -> NoReturn:
    raise RequestError(f"grammar {kind}", why, remedy)
