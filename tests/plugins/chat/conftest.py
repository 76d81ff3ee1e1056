"""Templates with a tokenizer, each made once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from chat_parts import CHATML, MakeChat, tokenizer, write
from infeng_chat.model import ModelTemplate
from infeng_chat.rendering.renderer import LIMITS, RenderLimits


@pytest.fixture(scope="session")
def make_chat(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MakeChat]:
    """Return ``make_chat(template)``; settings are further ones of tokenizer_config.json."""
    made: dict[str, ModelTemplate] = {}

    def make(template: Any = CHATML, *, limits: RenderLimits = LIMITS, **settings: Any) -> ModelTemplate:
        key = json.dumps([template, str(limits), settings])
        if key not in made:
            directory = write(tmp_path_factory.mktemp("model"), template, settings)
            made[key] = ModelTemplate(directory, tokenizer(directory), limits=limits)
        return made[key]

    yield make
    for one in made.values():
        one.close()
