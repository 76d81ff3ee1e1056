"""The processor's argument, ``{"json_schema": SCHEMA, "after": "</think>"}``: parsed, bounded and made hashable."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from infeng_core.api import RequestError

KINDS = ("json_object", "json_schema", "regex", "choice", "lark", "gbnf")
"""Kinds of constraint; an argument has exactly one."""

JSON_KINDS = ("json_object", "json_schema")

OPTIONS = ("after", "whitespace")

MOST_BYTES = 1 << 18
"""Most bytes of a grammar as UTF-8; the largest schemas of published tools have about a tenth."""

MOST_CHOICES = 4096

MOST_AFTER = 64
"""Most characters of ``after``."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A requested grammar; equal ones compile to the same."""

    kind: str
    """One of KINDS; ``json_object`` becomes ``json_schema``."""
    text: str
    """A schema or a list of choices as JSON; a regular expression or grammar as it was given."""
    whitespace: bool | None = None
    """Whitespace between the tokens of JSON: as ``json.dumps`` writes it (None), none (False), or bounded (True)."""


def read(argument: Any) -> tuple[Wanted, str]:
    """Return the requested grammar and the text after which it begins, "" for at once; raises RequestError."""
    if not isinstance(argument, Mapping):
        _refuse("grammar", f"its argument is {_show(argument)}, not a mapping", f'give {{"{KINDS[1]}": ...}}')
    unknown = [key for key in argument if key not in KINDS + OPTIONS]
    if unknown:
        _refuse("grammar", f"{_show(unknown[0])} is not known", f"it takes {', '.join(KINDS + OPTIONS)}")
    kinds = [kind for kind in KINDS if kind in argument]
    if len(kinds) != 1:
        _refuse("grammar", f"{', '.join(kinds) or 'nothing'} is given", f"give one of {', '.join(KINDS)}")
    after = argument.get("after", "")
    if after is not None and (not isinstance(after, str) or len(after) > MOST_AFTER or not _is_utf8(after)):
        _refuse("grammar after", f"{_show(after)} is not a text of at most {MOST_AFTER} characters", "leave it out")
    whitespace = argument.get("whitespace")
    if whitespace is not None and (not isinstance(whitespace, bool) or kinds[0] not in JSON_KINDS):
        why = f"{_show(whitespace)} is given with {kinds[0]}"
        _refuse("grammar whitespace", why, "it is true or false, and for JSON alone")
    text = _READERS[kinds[0]](argument[kinds[0]])
    if not _is_utf8(text):
        _refuse(f"grammar {kinds[0]}", "it has half a surrogate pair", "give valid Unicode")
    if len(text.encode()) > MOST_BYTES:
        _refuse(f"grammar {kinds[0]}", f"it has {len(text.encode())} bytes", f"give at most {MOST_BYTES}")
    kind = "json_schema" if kinds[0] in JSON_KINDS else kinds[0]
    return Wanted(kind, text, whitespace), after or ""


def _object(given: Any) -> str:
    if given is not True:
        _refuse("grammar json_object", f"{_show(given)} is not true", "leave it out for any text")
    return '{"type": "object"}'


def _schema(given: Any) -> str:
    """Return the schema as JSON with its keys in the given order, which is the order of the properties in an answer."""
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except (ValueError, RecursionError) as error:
            _refuse("grammar json_schema", f"it is not JSON: {error}", "give an object, or its text")
    if given is True:
        given = {}
    if not isinstance(given, Mapping):
        _refuse("grammar json_schema", f"{_show(given)} is not an object", "give a JSON schema")
    # Options of llguidance within a schema would switch off checks that are made here.
    schema = {key: value for key, value in given.items() if key != "x-guidance"}
    try:
        return json.dumps(schema, ensure_ascii=False, allow_nan=False, check_circular=True)
    except (TypeError, ValueError, RecursionError) as error:
        _refuse("grammar json_schema", f"it is not JSON: {error}", "give values that JSON can hold")


def _choice(given: Any) -> str:
    if not isinstance(given, (list, tuple)) or not given or not all(isinstance(text, str) and text for text in given):
        _refuse(
            "grammar choice", f"{_show(given)} is not a list of texts", 'give texts that are not empty: ["yes", "no"]'
        )
    if len(given) > MOST_CHOICES:
        _refuse("grammar choice", f"it has {len(given)} texts", f"give at most {MOST_CHOICES}")
    return json.dumps(list(dict.fromkeys(given)), ensure_ascii=False)


def _text(kind: str, given: Any) -> str:
    if not isinstance(given, str) or not given:
        _refuse(f"grammar {kind}", f"{_show(given)} is not a text", "give one that is not empty")
    return given


_READERS: Mapping[str, Callable[[Any], str]] = {
    "json_object": _object,
    "json_schema": _schema,
    "regex": lambda given: _text("regex", given),
    "choice": _choice,
    "lark": lambda given: _text("lark", given),
    "gbnf": lambda given: _text("gbnf", given),
}


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _refuse(what: str, why: str, remedy: str) -> NoReturn:
    raise RequestError(what, why, remedy)


def _show(value: object) -> str:
    try:
        text = repr(value)
    except Exception:
        return f"a {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:77]}..."
