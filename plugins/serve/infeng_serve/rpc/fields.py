"""Check of a message's fields: a field that is set and not supported is refused by name."""

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
    "include_stop_str_in_output": "answers are token ids and always include those of stop strings",
    "structural_tag": "give json_schema, regex, grammar, choice or json_object",
}
"""Why fields of the published service are refused."""


def given(message: Any, known: Collection[str], path: str = "") -> dict[str, Any]:
    """Return the fields that a message sets, by name; raises ApiError for one that is not in ``known``.

    path: the message's path in its request, for errors. As in proto3, a number, text or list without presence counts as
    unset if it is 0 or empty.
    """
    found = {field.name: value for field, value in message.ListFields()}
    for name in found.keys() - known:
        raise not_supported(f"{path}{name}", NOT_HERE.get(name, "this server does not know it"))
    for unknown in UnknownFieldSet(message):
        number = unknown.field_number
        why = f"field {number} of {message.DESCRIPTOR.full_name} is not in the version of the service that is served"
        raise invalid(f"{path}{number}", why, "unknown_parameter")
    return found
