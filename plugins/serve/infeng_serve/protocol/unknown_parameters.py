"""Unknown parameters: harmless ones are left out and reported, others are refused."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import msgspec
from msgspec import inspect

from infeng_core.api import get_logger

MOST_NAMED = 16
HEADER = b"x-infeng-ignored"

HARMLESS = {
    "keep_alive": "Ollama", "cache_prompt": "llama.cpp", "id_slot": "llama.cpp", "slot_id": "llama.cpp",
    "timings_per_token": "llama.cpp", "return_progress": "llama.cpp", "request_id": "vLLM", "rid": "SGLang",
    "provider": "OpenRouter", "route": "OpenRouter", "transforms": "OpenRouter", "usage": "OpenRouter",
    "prompt_cache_options": "OpenAI",
}  # fmt: skip
"""Harmless parameters by the API they belong to: they concern storage, routing or accounting, never the answer."""

NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "add_special_tokens": (False,), "best_of": (1,), "detokenize": (True,), "early_stopping": (False,),
    "echo": (False,), "functions": ([],), "include_reasoning": (True,), "include_stop_str_in_output": (False,),
    "length_penalty": (1,), "logits_processors": ([],), "mm_processor_kwargs": ({},),
    "n_probs": (0,), "raw": (False,), "reasoning_format": ("auto", "deepseek"), "return_full_text": (False,),
    "return_token_ids": (False,), "return_tokens_as_token_ids": (False,), "separate_reasoning": (True,),
    "skip_special_tokens": (True,), "spaces_between_special_tokens": (True,), "stream_reasoning": (True,),
    "tfs_z": (1,), "top_a": (0,), "use_beam_search": (False,), "use_cache": (True,),
}  # fmt: skip
"""Values that ask for the default behaviour. They apply only where a route does not know the parameter itself."""

_PLAIN = re.compile(r"[A-Za-z0-9_.\[\]-]{1,64}")
_log = get_logger(__name__)


@dataclass(slots=True)
class Ignored:
    """Collects a call's parameters that have no effect."""

    takes_all: bool = False
    """Whether all unknown parameters are ignored (``serve.unknown_parameters: ignore``)."""
    _names: dict[str, None] = field(default_factory=dict)

    def note(self, path: str) -> None:
        """Note a parameter by its path."""
        self._names[path] = None

    def without(self, body: bytes, type: Any) -> bytes:
        """Return a JSON body without the unknown parameters that may be left out, and note them.

        type: the struct to decode later; other unknown or wrong parameters are kept. Raises msgspec's errors.
        """
        return self._pruned(msgspec.Raw(body), _info(type), "")

    def headers(self, id: str = "") -> list[tuple[bytes, bytes]]:
        """Return the header that names the noted parameters, if there are any, and log them. id: the call's id."""
        if not self._names:
            return []
        names = [name if _PLAIN.fullmatch(name) else "?" for name in list(self._names)[:MOST_NAMED]]
        more = len(self._names) - len(names)
        text = ", ".join([*names, *([f"and {more} more"] if more else [])])
        _log.debug("parameters without effect", id=id, names=text)
        return [(HEADER, text.encode("ascii"))]

    def _pruned(self, value: msgspec.Raw, kind: inspect.Type, path: str) -> bytes:
        """Return JSON of ``kind`` without ignored parameters; all other bytes are copied unchanged."""
        kinds, first = _kinds(kind), bytes(value).lstrip()[:1]
        items = next((one.item_type for one in kinds if isinstance(one, inspect.ListType)), None)
        struct = next((one for one in kinds if isinstance(one, inspect.StructType)), None)
        if first == b"[" and items is not None and any(isinstance(one, inspect.StructType) for one in _kinds(items)):
            parts = msgspec.json.decode(value, type=list[msgspec.Raw])
            return b"[%b]" % b",".join([self._pruned(one, items, f"{path}[{i}]") for i, one in enumerate(parts)])
        if first != b"{" or struct is None or not struct.forbid_unknown_fields:
            return bytes(value)
        known = {one.encode_name: one.type for one in struct.fields}
        found = []
        for name, one in msgspec.json.decode(value, type=dict[str, msgspec.Raw]).items():
            place = f"{path}.{name}" if path else name
            if name not in known and (self.takes_all or is_harmless(name, one, is_nested=bool(path))):
                self.note(place)
                continue
            kept = self._pruned(one, known[name], place) if name in known else bytes(one)
            found.append(b"%b:%b" % (msgspec.json.encode(name), kept))
        return b"{%b}" % b",".join(found)


def is_harmless(name: str, value: msgspec.Raw, *, is_nested: bool = False) -> bool:
    """Return whether an unknown parameter has no effect; null is the same as leaving it out.

    value: the parameter's JSON.
    """
    if bytes(value) == b"null":
        return True
    if is_nested or name not in NEUTRAL:
        return not is_nested and name in HARMLESS
    given = msgspec.json.decode(value)
    return any(_are_equal(given, one) for one in NEUTRAL[name])


def described(schema: dict[str, Any], *, is_body: bool, takes_all: bool) -> dict[str, Any]:
    """Return a struct's JSON schema with the unknown parameters that are accepted.

    is_body: whether the struct is a whole body, not a part of one.
    """
    if schema.get("additionalProperties") is not False:
        return schema
    more: dict[str, Any] = {}
    if is_body:
        more = {name: {"description": f"ignored: of {whose}"} for name, whose in HARMLESS.items()}
        more |= {name: {"enum": [*values, None], "description": "ignored"} for name, values in NEUTRAL.items()}
    known = {**more, **schema.get("properties", {})}
    return {**schema, "properties": known, "additionalProperties": True if takes_all else {"type": "null"}}


def _are_equal(value: Any, one: Any) -> bool:
    """Return whether two values are equal in JSON, where false is not 0."""
    return bool(value == one) and isinstance(value, bool) == isinstance(one, bool)


@cache
def _info(type: Any) -> inspect.Type:
    return inspect.type_info(type)


def _kinds(kind: inspect.Type) -> list[inspect.Type]:
    """Return the types of a union, without annotations."""
    if isinstance(kind, inspect.Metadata):
        return _kinds(kind.type)
    if isinstance(kind, inspect.UnionType):
        return [one for part in kind.types for one in _kinds(part)]
    return [kind]
