"""Whether an adapter's invocation is found in texts is said when the adapter is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny_adapter
from engine_parts import MakeEngine

from infeng_core.engine import invocation_text
from infeng_core.engine.invocation_text import note_unsafe_ends

SPECIAL = 1  # </s>


class Notes:
    """A logger that keeps what it is told."""

    def __init__(self) -> None:
        self.said: list[tuple[str, dict[str, Any]]] = []

    def info(self, event: str, **pairs: Any) -> None:
        self.said.append(("info", pairs))

    def warning(self, event: str, **pairs: Any) -> None:
        self.said.append(("warning", pairs))


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> Notes:
    found = Notes()
    monkeypatch.setattr(invocation_text, "_log", found)
    return found


def ids(engine: Any, text: str) -> list[int]:
    found: list[int] = engine.tokenize(text)[1:]  # without BOS
    return found


def test_text_that_joins_its_neighbours_is_named_with_them(make_engine: MakeEngine, tmp_path: Path, notes: Notes):
    engine = make_engine()
    word = tuple(ids(engine, "the"))
    assert tuple(ids(engine, " the")) != word, "a space joins it"
    engine.adapters.load("a", str(tiny_adapter.write(tmp_path / "a", 1, invocation=word)), pin=True)
    [(level, said)] = notes.said
    assert level == "warning"
    assert said["text"] == "the" and said["adapter"] == str(tmp_path / "a")
    assert "' '" in said["after"]


def test_special_tokens_are_found_anywhere(make_engine: MakeEngine, tmp_path: Path, notes: Notes):
    engine = make_engine()
    invocation = (SPECIAL, *ids(engine, "quick"), SPECIAL)
    engine.adapters.load("a", str(tiny_adapter.write(tmp_path / "a", 1, invocation=invocation)), pin=True)
    assert not notes.said
    assert engine.adapters["a"].invocation == invocation


def test_a_plain_adapter_and_a_tokenizer_without_texts_are_no_matter(
    make_engine: MakeEngine, tmp_path: Path, notes: Notes
):
    engine = make_engine()
    engine.adapters.load("plain", str(tiny_adapter.write(tmp_path / "plain", 1)), pin=True)
    assert not notes.said

    class Broken:
        def detokenizer(self, prompt: object, **more: object) -> object:
            raise LookupError("no text")

    note_unsafe_ends("it", (5,), Broken())  # type: ignore[arg-type]
    assert [level for level, _ in notes.said] == ["info"]
