"""Constraints on an answer, from any of their parameters, converted to the argument of the processor ``grammar``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from infeng_serve.protocol.errors import ApiError, invalid
from infeng_serve.protocol.parameters import Choices, Common, ResponseFormat

PROCESSOR = "grammar"

_GBNF = re.compile(r"^\s*[\w-]+\s*::=", re.MULTILINE)
"""A rule in GBNF or EBNF; in Lark it is ``name: ...``. vLLM accepts both in one parameter."""

Constraint = Mapping[str, Any]


class Form(NamedTuple):
    """A constraint on an answer, and the parameter that has it."""

    path: str
    """Path of the parameter for errors, such as ``response_format.json_schema.schema``."""
    constraint: Constraint
    is_of_text: bool = False
    """Whether it applies to texts only, not to calls."""


def form(given: Common, formatted: Form | None = None) -> Form | None:
    """Return the constraint in a request, None without one; raises ApiError.

    formatted: the form of a text, if it is not in ``response_format``.
    """
    found = _asked(given)
    if isinstance(given, Choices) and given.response_format is not None:
        formatted = of_format(given.response_format)
    found += [formatted] if formatted is not None else []
    if len(found) > 1:
        names = " and ".join(one.path for one in found)
        raise invalid(found[1].path, f"{names} are given: an answer can keep to one of them")
    return found[0] if found else None


def of_format(given: ResponseFormat, path: str = "response_format") -> Form | None:
    """Return the constraint in a ``response_format``; raises ApiError."""
    if given.type == "text":
        return None
    if given.type not in ("json_object", "json_schema"):
        raise invalid(f"{path}.type", f"{path}.type: {given.type!r} is not text, json_object or json_schema")
    if given.type == "json_schema" and given.json_schema is not None:
        place, schema = f"{path}.json_schema.schema", given.json_schema.schema
    else:
        place, schema = f"{path}.schema", given.schema
    if schema is not None:
        return Form(place, {"json_schema": schema}, True)
    if given.type == "json_object":
        return Form(path, {"json_object": True}, True)
    missing = place if given.json_schema is not None else f"{path}.json_schema"
    raise missing_schema(missing)


def missing_schema(path: str) -> ApiError:
    """Return the error for a form that lacks its schema."""
    return invalid(path, f"missing parameter {path}: a json_schema is a form by its schema",
                   "missing_required_parameter")  # fmt: skip


def processors(found: Form | None, *, after: str | None = None) -> tuple[tuple[str, Any], ...]:
    """Return ``SamplingParams.processors``. after: the text after which the constraint applies."""
    if found is None:
        return ()
    return ((PROCESSOR, {**found.constraint, "after": after} if after else dict(found.constraint)),)


def paths(found: Form | None) -> dict[str, str]:
    """Return the path of the constraint's parameter by the processor's name."""
    return {} if found is None else {PROCESSOR: found.path}


def _asked(given: Common) -> list[Form]:
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
    given_ones = [entry for entry in asked if entry[2] is not None and entry[2] is not False]
    found = [Form(path, one(path, kind, value)) for path, kind, value in given_ones]
    if given.structured_outputs is not None and not any(made.path.startswith("structured") for made in found):
        raise invalid("structured_outputs", "structured_outputs: give one of json, json_object, regex, choice, grammar")
    return found


def one(path: str, kind: str, value: Any) -> Constraint:
    """Return a constraint. kind: its field of ``structured_outputs``. path: for errors. Raises ApiError."""
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
