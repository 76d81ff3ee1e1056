"""One engine over the demo model, and the context of a call to it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from infeng_demo import model_dir
from infeng_serve.protocol.answer import Context
from infeng_tokenizers.api import HfTokenizer
from protocol_parts import context_of

from infeng_core.api import Engine, EngineConfig


@pytest.fixture(scope="session")
def tokenizer() -> HfTokenizer:
    return HfTokenizer(model_dir(), EngineConfig())


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine(str(model_dir()), overrides={"threads.count": 1}) as made:
        yield made


@pytest.fixture
def context(tokenizer: HfTokenizer) -> Context:
    return context_of(tokenizer)
