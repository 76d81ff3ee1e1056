"""docs/serving-requests.md has a row for each parameter, with the words that the server itself says of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from infeng_serve.protocol.chat import ChatRequest
from infeng_serve.protocol.completions import CompletionRequest
from infeng_serve.protocol.openapi import document
from infeng_serve.protocol.responses import ResponsesRequest
from infeng_serve.protocol.unknown_parameters import HARMLESS, NEUTRAL
from msgspec import Meta
from openai.types import completion_create_params
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.responses import response_create_params

PAGE = Path(__file__).parents[4] / "docs" / "serving-requests.md"
OPENAI: dict[Any, Any] = {
    CompletionRequest: completion_create_params.CompletionCreateParamsStreaming,
    ChatRequest: chat_create_params.CompletionCreateParamsStreaming,
    ResponsesRequest: response_create_params.ResponseCreateParamsStreaming,
}
NAMES = {CompletionRequest: "completions", ChatRequest: "chat", ResponsesRequest: "responses"}
NOT_SERVED = {
    "audio", "function_call", "functions", "moderation", "web_search_options", "prompt_cache_options",
    "access_programs", "background_options", "context_management", "image",
}  # fmt: skip
"""OpenAI's parameters that are unknown here."""


def described(kind: Any) -> dict[str, str]:
    """Return what is said of each parameter."""
    hints = get_type_hints(kind, include_extras=True)
    return {
        name: next(one.description or "" for one in hints[name].__metadata__ if isinstance(one, Meta))
        for name in kind.__struct_fields__
    }


def rows() -> dict[tuple[str, str], list[str]]:
    """Return the cells of each row by its parameter and meaning."""
    found = {}
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("| `") and len(cells) == 5:
            found[cells[0].strip("`"), cells[1]] = cells
    return found


@pytest.mark.parametrize("kind", OPENAI, ids=NAMES.get)
def test_every_parameter_has_a_row_in_the_page(kind):
    known = rows()
    for name, description in described(kind).items():
        assert description, name
        cells = known.get((name, description))
        assert cells is not None, f"| `{name}` | {description} |"
        _, _, default, routes, whose = cells
        assert default
        assert NAMES[kind] in routes or routes == "all", name
        is_openai = any(name in get_type_hints(one) for one in OPENAI.values())
        assert whose == ("OpenAI" if is_openai else "extension"), name


@pytest.mark.parametrize("kind", OPENAI, ids=NAMES.get)
def test_every_parameter_is_in_the_openapi_document(kind):
    schema = json.loads(document())["components"]["schemas"][kind.__name__]
    known = {name: one["description"] for name, one in schema["properties"].items()}
    assert {name: known[name] for name in kind.__struct_fields__} == described(kind)
    assert known.keys() - set(kind.__struct_fields__) == {*HARMLESS, *NEUTRAL} - set(kind.__struct_fields__)


def test_every_row_of_the_page_is_a_parameter():
    every = {(name, text) for kind in OPENAI for name, text in described(kind).items()}
    assert rows().keys() == every


@pytest.mark.parametrize("kind", OPENAI, ids=NAMES.get)
def test_every_parameter_of_openai_is_served_or_listed_as_not_served(kind):
    unknown = get_type_hints(OPENAI[kind]).keys() - set(kind.__struct_fields__)
    assert unknown <= NOT_SERVED
    page = PAGE.read_text(encoding="utf-8")
    for name in unknown:
        assert f"`{name}`" in page, name


def test_ignored_parameters_of_other_servers_are_listed():
    text = PAGE.read_text(encoding="utf-8")
    for name, whose in HARMLESS.items():
        assert any(f"`{name}`" in line and whose in line for line in text.splitlines()), name
    for name, values in NEUTRAL.items():
        for value in values:
            assert f"`{name}: {json.dumps(value)}`" in text, name
