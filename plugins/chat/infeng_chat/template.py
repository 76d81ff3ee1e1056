"""A model's chat template: messages to the text and ids of a prompt, and what reads the model's answer."""

from __future__ import annotations

from pathlib import Path

from infeng_chat.contract import ChatPrompt, ChatTemplate, Delta, OutputParser, ToolDelta
from infeng_core.api import Tokenizer

__all__ = ["ChatPrompt", "ChatTemplate", "Delta", "OutputParser", "ToolDelta", "find", "prepare"]


def prepare() -> None:
    """Let the process of the template that ``find`` will return start now, beside whatever comes in between."""
    from infeng_chat.rendering.renderer import prepare

    prepare()


def find(directory: Path, tokenizer: Tokenizer, *, override: Path | None = None) -> ChatTemplate:
    """Return the template of a model directory, or a plain one where it has none.

    override: a file with a template to use instead. Raises ModelError for one that cannot be read or compiled.
    """
    from infeng_chat.model import ModelTemplate

    return ModelTemplate(directory, tokenizer, override)
