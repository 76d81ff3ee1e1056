"""A model's chat template: rendering of messages to prompts, and parsing of the model's answers."""

from __future__ import annotations

from pathlib import Path

from infeng_chat.contract import ChatPrompt, ChatTemplate, Delta, OutputParser, ToolDelta
from infeng_core.api import Tokenizer

__all__ = ["ChatPrompt", "ChatTemplate", "Delta", "OutputParser", "ToolDelta", "find", "prepare"]


def prepare() -> None:
    """Start the process for the template that ``find`` will return, so that it initializes in parallel."""
    from infeng_chat.rendering.renderer import prepare

    prepare()


def find(directory: Path, tokenizer: Tokenizer, *, override: Path | None = None) -> ChatTemplate:
    """Return the template of a model directory, or a plain one if it has none.

    override: a file with a template to use instead. Raises ModelError if the template cannot be read or compiled.
    """
    from infeng_chat.model import ModelTemplate

    return ModelTemplate(directory, tokenizer, override)
