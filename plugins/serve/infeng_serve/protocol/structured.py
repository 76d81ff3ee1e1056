"""What an answer must be, by whichever parameter it is said: the argument of the logit processor ``grammar``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from infeng_serve.protocol.errors import invalid
from infeng_serve.protocol.parameters import Choices, Common, ResponseFormat

PROCESSOR = "grammar"

_GBNF = re.compile(r"^\s*[\w-]+\s*::=", re.MULTILINE)
"""A rule as GBNF and EBNF have it; in Lark it is ``name: ...``. vLLM takes both by one parameter."""

Constraint = Mapping[str, Any]


def constraint(given: Common) -> Constraint | None:
    """Return what a request says that its answer must be, None where it says nothing; raises ApiError."""
    found = _asked(given)
    if isinstance(given, Choices) and given.response_format is not None:
        formatted = of_format(given.response_format)
        found += [("response_format", formatted)] if formatted is not None else []
    if len(found) > 1:
        names = " and ".join(name for name, _ in found)
        raise invalid(found[1][0], f"{names} are given: an answer can keep to one of them")
    return found[0][1] if found else None


def of_format(given: ResponseFormat, path: str = "response_format") -> Constraint | None:
    """Return what a ``response_format`` asks for; raises ApiError."""
    if given.type == "text":
        return None
    if given.type == "json_object":
        return {"json_object": True} if given.schema is None else {"json_schema": given.schema}
    if given.type != "json_schema":
        raise invalid(f"{path}.type", f"{path}.type: {given.type!r} is not text, json_object or json_schema")
    if given.json_schema is None and given.schema is not None:
        return {"json_schema": given.schema}
    if given.json_schema is None or given.json_schema.schema is None:
        raise invalid(f"{path}.json_schema", f"{path}.json_schema: it has no schema", "missing_required_parameter")
    return {"json_schema": given.json_schema.schema}


def processors(found: Constraint | None, *, after: str | None = None) -> tuple[tuple[str, Any], ...]:
    """Return ``SamplingParams.processors``. after: the text from which on the answer is held to it."""
    if found is None:
        return ()
    return ((PROCESSOR, {**found, "after": after} if after else dict(found)),)


def _asked(given: Common) -> list[tuple[str, Constraint]]:
    asked: list[tuple[str, str, Any]] = [
        ("guided_json", "json", given.guided_json),
        ("guided_regex", "regex", given.guided_regex),
        ("guided_choice", "choice", given.guided_choice),
        ("guided_grammar", "grammar", given.guided_grammar),
        ("json_schema", "json", given.json_schema),
        ("response_schema", "json", given.response_schema),
        ("grammar", "gbnf", given.grammar),
    ]
    if (outputs := given.structured_outputs) is not None:
        names = ("json", "json_object", "regex", "choice", "grammar")
        asked += [(f"structured_outputs.{name}", name, getattr(outputs, name)) for name in names]
    found = [(path, one(path, kind, value)) for path, kind, value in asked if value is not None and value is not False]
    if given.structured_outputs is not None and not any(path.startswith("structured") for path, _ in found):
        raise invalid("structured_outputs", "structured_outputs: give one of json, json_object, regex, choice, grammar")
    return found


def one(path: str, kind: str, value: Any) -> Constraint:
    """Return the constraint of one kind, as ``structured_outputs`` names it; raises ApiError that names ``path``."""
    if kind == "json":
        return {"json_schema": _schema(path, value)}
    if kind == "choice" and not value:
        raise invalid(path, f"{path}: there is no choice")
    if kind == "grammar":
        return {"gbnf" if _GBNF.search(value) else "lark": value}
    return {kind: value}


def _schema(path: str, value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        schema = msgspec.json.decode(value)
    except (msgspec.DecodeError, ValueError, RecursionError):
        schema = None
    if not isinstance(schema, dict | bool):
        raise invalid(path, f"{path}: its text is not a JSON schema")
    return schema
