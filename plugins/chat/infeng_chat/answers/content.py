"""Content types of response templates: parsing the text between delimiters and shaping the result."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import re2

from infeng_chat.answers import jsonstream
from infeng_chat.answers.cursor import Cursor, MalformedError

_PLACE = re.compile(r"\{(\w+)\}")


def read(spec: Mapping[str, Any], text: str) -> Any:
    """Parse a field's text; raises ValueError for a text that does not have the field's type."""
    return _read(str(spec.get("content", "text")), spec.get("content_args") or {}, text)


def transformed(spec: Mapping[str, Any], content: Any, captures: Mapping[str, str]) -> Any:
    """Apply ``transform`` to a value; raises KeyError for an unknown name."""
    shape = spec.get("transform")
    if shape is None:
        return content
    if spec.get("transform_each"):
        if not isinstance(content, list):
            raise TypeError("no list")
        return [
            _shaped(shape, {**captures, "content": one, **(one if isinstance(one, dict) else {})}) for one in content
        ]
    return _shaped(shape, {**captures, "content": content})


def _shaped(shape: Any, values: Mapping[str, Any]) -> Any:
    if isinstance(shape, str):
        place = _PLACE.fullmatch(shape)
        return shape if place is None else values[place.group(1)]
    if isinstance(shape, Mapping):
        return {key: _shaped(item, values) for key, item in shape.items()}
    return [_shaped(item, values) for item in shape] if isinstance(shape, Sequence) else shape


def _read(kind: str, settings: Mapping[str, Any], text: str) -> Any:
    if kind == "text":
        return text.strip() if settings.get("strip", True) else text
    if kind in ("int", "float"):
        return {"int": int, "float": float}[kind](text.strip())
    if kind == "bool":
        return {"true": True, "false": False, "1": True, "0": False}[text.strip().lower()]
    if kind == "json":
        return _json(settings, text)
    if kind == "xml-inline":
        return _tags(settings, text)
    if kind == "kv-lines":
        return _lines(settings, text)
    raise ValueError(f"content type {kind} is not known")


def _json(settings: Mapping[str, Any], text: str) -> Any:
    plain = text
    for begin, end in settings.get("string_delims") or ():
        inside = re.compile(f"{re.escape(begin)}(.*?){re.escape(end)}", re.DOTALL)
        plain = inside.sub(lambda match: json.dumps(match.group(1), ensure_ascii=False), plain)
    cursor = Cursor()
    cursor.feed(plain)
    cursor.ended = True
    steps = jsonstream.parsed(cursor)
    try:
        next(steps)
    except StopIteration as done:
        if not cursor.text[cursor.at :].strip():
            return done.value
    except MalformedError:
        pass
    if settings.get("allow_non_json"):
        return text.strip()
    raise ValueError("no JSON")


def _tags(settings: Mapping[str, Any], text: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for match in re2.compile(f"(?s:{settings['tag_pattern']})").finditer(text):
        _put(found, match.group("key"), _value(settings, match.group("value")), bool(settings.get("merge_duplicates")))
    return found


def _lines(settings: Mapping[str, Any], text: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for line in text.split(settings.get("line_sep", "\n")):
        key, separator, item = line.partition(settings.get("kv_sep", ":"))
        if separator:
            strips = settings.get("strip", True)
            found[key.strip() if strips else key] = _value(settings, item.strip() if strips else item)
    return found


def _value(settings: Mapping[str, Any], text: str) -> Any:
    parser = settings.get("value_parser")
    return text if parser is None else _read(str(parser["name"]), parser.get("args") or {}, text)


def _put(found: dict[str, Any], key: str, value: Any, merges: bool) -> None:
    if merges and key in found:
        found[key] = [*(found[key] if isinstance(found[key], list) else [found[key]]), value]
    else:
        found[key] = value
