"""Decodes a client's JSON to a struct, or raises error 400 with the path of the wrong parameter."""

from __future__ import annotations

import re
import threading
from typing import Any, TypeVar

import msgspec

from infeng_core.api import printable, unknown_key_remedy
from infeng_serve.protocol import bounds, counting
from infeng_serve.protocol.errors import ApiError, invalid
from infeng_serve.protocol.unknown_parameters import Ignored

T = TypeVar("T")

_PLACE = re.compile(r"^(?P<what>.*?)(?: - at (?:`key` in )?`\$(?P<path>[^`]*)`)?$", re.DOTALL)
_UNKNOWN = re.compile(r"^Object contains unknown field `(?P<name>.*)`$", re.DOTALL)
_MISSING = re.compile(r"^Object missing required field `(?P<name>.*)`$", re.DOTALL)
_TYPES = {"null": "null", "float": "number", "int": "integer", "str": "string", "bool": "boolean"}

ELSEWHERE = {
    "n_predict": "max_tokens", "max_new_tokens": "max_tokens", "max_length": "max_tokens", "num_predict": "max_tokens",
    "repeat_penalty": "repetition_penalty", "typ_p": "typical_p", "typical": "typical_p",
    "stop_sequences": "stop", "stop_words": "stop", "eos_token_id": "stop_token_ids",
    "bad_words_ids": "bad_words", "regex": "guided_regex", "guided_choices": "guided_choice",
    "ebnf": "guided_grammar", "guided_schema": "guided_json", "lora": "adapters", "lora_adapters": "adapters",
    "num_return_sequences": "n", "random_seed": "seed", "system_prompt": "messages",
    "functions": "tools", "function_call": "tool_choice",
}  # fmt: skip
"""Parameters of this server by the names that other servers and libraries use."""


_learning = threading.Lock()
_learnt: set[Any] = set()


def _learn(type: type[T]) -> None:
    """Let msgspec analyse ``type`` and its parts once, under a lock, before any thread uses it.

    msgspec 0.22 analyses a struct at its first use and exposes it half initialized to other threads: two threads that
    use it at once crash the process.
    """
    if type not in _learnt:
        with _learning:
            msgspec.json.Decoder(type)
            _learnt.add(type)


def decode(body: bytes, type: type[T], ignored: Ignored | None = None) -> T:
    """Decode a body as ``type``; raises ApiError for invalid JSON, another form, or too many values.

    ignored: collects unknown parameters that may be left out; None: unknown parameters are errors.
    """
    counting.check(body)
    _learn(type)
    try:
        found = _decoded(body, type, ignored)
    except msgspec.ValidationError as error:
        raise _refused(error, type) from None
    except RecursionError:
        raise invalid(None, "the body is nested too deeply", "invalid_json") from None
    except (msgspec.DecodeError, ValueError) as error:
        raise invalid(None, f"the body is not valid JSON: {printable(str(error), 200)}", "invalid_json") from None
    if isinstance(found, msgspec.Struct):
        bounds.check(found)
    return found


def _decoded(body: bytes, type: type[T], ignored: Ignored | None) -> T:
    try:
        return msgspec.json.decode(body, type=type)
    except msgspec.ValidationError as error:
        if ignored is None or not _UNKNOWN.match(_parts(error)[0]):
            raise
    return msgspec.json.decode(ignored.without(body, type), type=type)


def convert(value: Any, type: type[T], path: str) -> T:
    """Convert a value of a decoded body to ``type``; raises ApiError. path: the value's path in the body."""
    _learn(type)
    try:
        return msgspec.convert(value, type)
    except msgspec.ValidationError as error:
        raise _refused(error, type, path) from None
    except RecursionError:
        raise invalid(path, f"{path} is nested too deeply") from None


def _refused(error: msgspec.ValidationError, type: Any, base: str = "") -> ApiError:
    what, path = _parts(error)
    path = f"{base}{path}" if base else path.removeprefix(".")
    if unknown := _UNKNOWN.match(what):
        name = printable(unknown["name"], 64)
        path = f"{path}.{name}" if path else name
        known = getattr(type, "__struct_encode_fields__", ()) if path == name else ()
        elsewhere = ELSEWHERE.get(name, "")
        remedy = f": {unknown_key_remedy(name, known)}" if known else ""
        remedy = f": it is {elsewhere} here" if elsewhere in known else remedy
        return invalid(path, f"unknown parameter {path or repr(path)}{remedy}", "unknown_parameter")
    if missing := _MISSING.match(what):
        path = f"{path}.{missing['name']}" if path else missing["name"]
        return invalid(path, f"missing parameter {path}", "missing_required_parameter")
    wording = re.sub(r"`(\w+)`|\b(null|float|int|str|bool)\b", _named, what)
    where = printable(path, 200) or "the body"
    return invalid(path or None, f"{where}: {wording[:1].lower()}{wording[1:]}", "invalid_type")


def _parts(error: msgspec.ValidationError) -> tuple[str, str]:
    """Return msgspec's message and the path in it."""
    found = _PLACE.match(str(error))
    what, path = (found["what"], found["path"] or "") if found else (str(error), "")
    return what, path.partition("[...]")[0]  # msgspec gives no path within an object of arbitrary keys


def _named(found: re.Match[str]) -> str:
    word = found[1] or found[2]
    return _TYPES.get(word, word)
