"""docs/serving-requests.md has a row for each parameter of the dialects, and docs/serving.md each of their paths."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_type_hints

import pytest
from dialect_parts import dialects
from infeng_dialects.anthropic.parameters import MessagesRequest
from infeng_dialects.llamacpp.parameters import MOST_BIASED, InfillRequest, LlamaCompletionRequest
from infeng_dialects.ollama.messages import MOST_CALLS
from infeng_dialects.ollama.parameters import GenerateRequest, OllamaChatRequest, Options
from infeng_dialects.ranking.parameters import RerankRequest, ScoreRequest
from infeng_serve.protocol.requests import MOST_REQUESTS
from msgspec import Meta

DOCS = Path(__file__).parents[3] / "docs"
SECTIONS = {
    "### Anthropic": [MessagesRequest],
    "### Ollama": [GenerateRequest, OllamaChatRequest, Options],
    "### llama.cpp": [LlamaCompletionRequest, InfillRequest],
    "### Rerankers": [RerankRequest, ScoreRequest],
}


def described(kind: Any) -> set[tuple[str, str]]:
    """Return each parameter with what is said of it."""
    hints = get_type_hints(kind, include_extras=True)
    metas = {name: getattr(hints[name], "__metadata__", ()) for name in kind.__struct_fields__}
    told = {name: [one.description for one in some if isinstance(one, Meta)] for name, some in metas.items()}
    assert all(words and words[0] for words in told.values()), told
    return {(name, str(words[0])) for name, words in told.items()}


@pytest.mark.parametrize("title", SECTIONS)
def test_the_tables_are_the_parameters(title: str):
    page = (DOCS / "serving-requests.md").read_text(encoding="utf-8")
    section = page[page.index(title) :].split("\n###")[0].split("\n## ")[0]
    rows = {
        (cells[0].strip("`"), cells[1])
        for line in section.splitlines()
        if line.startswith("| `") and len(cells := [cell.strip() for cell in line.strip("|").split(" | ")]) == 2
    }
    assert rows == {row for kind in SECTIONS[title] for row in described(kind)}


def test_the_page_names_every_path():
    page = (DOCS / "serving.md").read_text(encoding="utf-8")
    for path in dialects():
        assert f"`{path}`" in page or f"`POST {path}`" in page or f"`GET {path}`" in page, path


def test_the_page_of_limits_has_those_of_the_dialects():
    page = (DOCS / "operations.md").read_text(encoding="utf-8")
    for what, most in {
        "documents of a call of /v1/rerank, pairs of /v1/score": MOST_REQUESTS,
        "calls of tools in one turn of /api/chat": MOST_CALLS,
        "characters of a text in `logit_bias` of /completion": MOST_BIASED,
    }.items():
        assert f"| {what} | {most} | 400 |" in page
