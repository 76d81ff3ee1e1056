"""What the parts of a server know of conversations: a template's face, prompts, and the pieces of an answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class ToolDelta:
    """A piece of a tool call. The first of each call has its id and name; arguments are JSON in pieces."""

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class Delta:
    """What became certain of an answer."""

    content: str = ""
    reasoning: str = ""
    tool: ToolDelta | None = None


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A conversation as the model reads it."""

    text: str
    """As the template renders it, for people."""
    ids: tuple[int, ...]
    """What the engine is given: special tokens of the template are tokens, those typed in messages stay text."""
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that end a turn, beside the model's own."""
    opens_reasoning: bool = False
    """Whether the prompt ends inside of reasoning, so that the answer begins there."""
    stop: tuple[str, ...] = ()
    """Texts that end a turn, where no token does."""
    reasoning_end: str = ""
    """What ends the reasoning that the answer begins in: a grammar is to hold after it (its ``after``)."""


class OutputParser(Protocol):
    """Reads one answer as it comes: content, reasoning and calls."""

    reads_special_tokens: bool
    """Whether it looks for special tokens: the answer is to be made with ``skip_special_tokens=False`` then."""

    def push(self, text: str) -> list[Delta]:
        """Take more text; return what became certain, in order."""

    def finish(self) -> list[Delta]:
        """Return what was held back; no text follows."""


class ChatTemplate(Protocol):
    """What a model directory says of conversations."""

    def prompt(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, Any] | None = None,
    ) -> ChatPrompt:
        """Render messages of OpenAI's form. Blocks for milliseconds; several threads may ask at a time.

        Raises RequestError for messages that the template refuses, or that take it too long.
        """

    def parser(self, prompt: ChatPrompt, *, tools: Sequence[Mapping[str, Any]] = ()) -> OutputParser:
        """Return what reads one answer to ``prompt``; without tools, calls stay text."""

    def call_grammar(
        self, tools: Sequence[Mapping[str, Any]], *, name: str | None = None, parallel: bool = True
    ) -> Mapping[str, Any] | None:
        """Return the argument of the processor ``grammar`` that leaves nothing but calls (of the tool ``name``).

        None where the template's form of calls is not known.
        """
