"""Interfaces between this package and a server: templates, prompts, parsers and the deltas of an answer."""

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
    """A piece of an answer that further text cannot change."""

    content: str = ""
    reasoning: str = ""
    tool: ToolDelta | None = None


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A conversation rendered as a prompt."""

    text: str
    """The rendered text, for people."""
    ids: tuple[int, ...]
    """The token ids: special tokens of the template are tokens, special tokens typed in messages are text."""
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that end a turn, besides the model's own."""
    opens_reasoning: bool = False
    """Whether the prompt ends within reasoning, so that the answer begins with reasoning."""
    stop: tuple[str, ...] = ()
    """Texts that end a turn, if no token does."""
    reasoning_end: str = ""
    """Tag that ends the reasoning with which the answer begins; a grammar applies after it (its ``after``)."""


class OutputParser(Protocol):
    """Parses one answer incrementally into content, reasoning and calls."""

    reads_special_tokens: bool
    """Whether the parser needs special tokens in the text, and so requests need ``skip_special_tokens=False``."""

    def push(self, text: str) -> list[Delta]:
        """Parse more text; return the deltas that became certain, in order."""

    def finish(self) -> list[Delta]:
        """Return the remaining deltas; the text is complete."""


class ChatTemplate(Protocol):
    """A model's chat template, with the parser for its answers."""

    def prompt(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, Any] | None = None,
    ) -> ChatPrompt:
        """Render messages in OpenAI's form. Blocks for milliseconds; thread-safe.

        Raises RequestError for messages that the template refuses or that take too long to render.
        """

    def parser(self, prompt: ChatPrompt, *, tools: Sequence[Mapping[str, Any]] = ()) -> OutputParser:
        """Return a parser for one answer to ``prompt``; without tools, calls stay text."""

    def call_grammar(
        self, tools: Sequence[Mapping[str, Any]], *, name: str | None = None, parallel: bool = True
    ) -> Mapping[str, Any] | None:
        """Return the argument of the processor ``grammar`` that admits only calls, of the tool ``name`` if given.

        None if the template's syntax of calls is unknown.
        """
