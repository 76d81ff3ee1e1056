"""Processors without an engine over the tokenizer of TinyLlama, and an engine that runs the demo model."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from grammar_parts import MODEL, Make
from infeng_grammar.processor import Grammars
from infeng_tokenizers.api import HfTokenizer
from shared_fixtures import shared_cache

from infeng_core.api import Engine, EngineConfig, Vocabulary

__all__ = ["data", "engine", "grammars", "make", "shared_cache", "spell", "vocabulary"]


@pytest.fixture(scope="module")
def engine(cache: Path) -> Iterator[Engine]:
    """The demo model, without speculation."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("INFENG_") and name != "INFENG_TEST_DATA"]:
            patch.delenv(name)
        patch.setenv("INFENG_CACHE", str(cache))
        with Engine(MODEL, threads=1) as made:
            yield made


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder of test data."""
    found = os.environ.get("INFENG_TEST_DATA")
    if not found or not (Path(found) / "tokenizer-tinyllama").is_dir():
        pytest.skip("INFENG_TEST_DATA does not name a folder with tokenizer-tinyllama/")
    return Path(found)


@pytest.fixture(scope="session")
def vocabulary() -> Vocabulary:
    """The tokens of the demo model; the logits have more columns than there are tokens."""
    tokenizer = HfTokenizer(MODEL, EngineConfig())
    ends = json.loads((MODEL / "config.json").read_text())["eos_token_id"]
    return Vocabulary(tokenizer, tokenizer.vocab_size + 70, (ends,), MODEL)


@pytest.fixture(scope="session")
def grammars(vocabulary: Vocabulary) -> Grammars:
    """The processors of an engine with those tokens."""
    return Grammars(vocabulary)


@pytest.fixture(scope="session")
def make(grammars: Grammars) -> Make:
    """Return a function that makes one of them."""
    return lambda argument: grammars.make(argument, ())  # type: ignore[return-value]


@pytest.fixture(scope="session")
def spell(grammars: Grammars) -> Callable[[str], list[int]]:
    """Return a function from a text to its ids as they follow others: nothing is put before it."""
    return lambda text: grammars._known().library.tokenize_str(text)
