"""Parts of the tests of conversations: model directories with a tokenizer and a template."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import tiny_model
from infeng_chat.model import ModelTemplate
from infeng_tokenizers.api import HfTokenizer
from tokenizers import AddedToken

from infeng_core.api import EngineConfig, Tokenizer

SPECIAL = ("<|im_start|>", "<|im_end|>", "<|eot|>", "[TOOL_CALLS]", "<|message|>", "<|channel|>", "<|start|>")

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

MakeChat = Callable[..., ModelTemplate]


def write(directory: Path, template: Any = None, settings: Mapping[str, Any] | None = None) -> Path:
    """Write tokenizer.json and tokenizer_config.json."""
    made = tiny_model.tokenizer()
    made.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    made.add_tokens([AddedToken(text, special=False, normalized=False) for text in ("<think>", "</think>")])
    made.save(str(directory / "tokenizer.json"))
    config = {"bos_token": "<s>", "eos_token": "</s>", **(settings or {})}
    config |= {} if template is None else {"chat_template": template}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return directory


def tokenizer(directory: Path) -> Tokenizer:
    """Return the tokenizer of a directory."""
    return HfTokenizer(directory, EngineConfig())
