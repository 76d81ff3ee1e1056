"""docs/plugin-reference.md says what the docstrings say, and its examples run."""

from __future__ import annotations

import re

import pytest
from docs.reference import PAGE, page
from docs.reference_examples import EXAMPLES, OF_HOOKS

from infeng_core.plug.hookspecs import HOOKS

ASKED = ("Batch", "Adjustment", "Vocabulary", "Served", "VectorSpec", "Graph")


def test_the_page_is_made_from_the_docstrings() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run: PYTHONPATH=tests python -m docs.reference"


def test_every_hook_is_there_with_an_example() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert {hook.kind for hook in HOOKS} < OF_HOOKS.keys()
    for kind, example in OF_HOOKS.items():
        assert text.count(f"### `infeng_{kind}`\n") == 1
        assert (PAGE.parent / example).is_file()


@pytest.mark.parametrize("name", ASKED)
def test_each_member_is_described_beside_it_or_in_the_type_s_own_words(name: str) -> None:
    text = PAGE.read_text(encoding="utf-8")
    section = text.partition(f"### `{name}`\n")[2].partition("\n### ")[0].partition("\n## ")[0]
    about, _, table = section.partition("| field |")
    assert "```python\n" in section
    for member, described in re.findall(r"^\| `(\w+)` \| `[^\n]*?` \| ?([^\n]*?) ?\|$", table, re.MULTILINE):
        assert described or re.search(rf"\b{member}\b", about), f"{name}.{member}"


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_examples_run(name: str) -> None:
    exec(compile(EXAMPLES[name], f"the example of {name}", "exec"), {})
