"""Which fields of a message are taken; every other that is set is refused by its name."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from google.protobuf.unknown_fields import UnknownFieldSet

from infeng_serve.protocol.errors import invalid, not_supported

NOT_HERE: Mapping[str, str] = {
    "kv_transfer_params": "the cache is not handed over between servers",
    "kv_transfer_params_json": "the cache is not handed over between servers",
    "mm_inputs": "the model reads text alone",
    "extra_mm_inputs": "the model reads text alone",
    "media_refs": "the model reads text alone",
    "truncate_prompt_tokens": "prompts are taken whole: shorten it before it is sent",
    "include_stop_str_in_output": "answers are tokens, all of them: whoever makes them text leaves stop strings in",
    "structural_tag": "give json_schema, regex, grammar, choice or json_object",
}
"""Why fields of the published service are refused."""


def given(message: Any, known: Collection[str], path: str = "") -> dict[str, Any]:
    """Return the fields that a message sets, by their names; raises ApiError for one that is not in ``known``.

    path: of the message in its request, for errors. A number, text or list without presence that is 0 or empty is not
    set, as proto3 has it.
    """
    found = {field.name: value for field, value in message.ListFields()}
    for name in found.keys() - known:
        raise not_supported(f"{path}{name}", NOT_HERE.get(name, "this server does not know it"))
    for unknown in UnknownFieldSet(message):
        number = unknown.field_number
        why = f"field {number} of {message.DESCRIPTOR.full_name} is not in the version of the service that is served"
        raise invalid(f"{path}{number}", why, "unknown_parameter")
    return found
