"""Incremental parsing of one answer into reasoning, content and tool calls."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from infeng_chat.template import Delta, OutputParser

from infeng_core.api import Completion
from infeng_serve.protocol import finish
from infeng_serve.protocol import usage as counts
from infeng_serve.protocol.answer import Context
from infeng_serve.protocol.tools import Selection

FinishReason = Literal["stop", "length", "tool_calls"]


class Reader:
    """Passes one answer's text through a parser."""

    def __init__(self, parser: OutputParser, selection: Selection, *, shows_reasoning: bool = True) -> None:
        """Read an answer with ``parser``.

        selection: the tools; says whether calls after the first are returned, and whether a call is required.
        shows_reasoning: whether reasoning is returned.
        """
        self._parser = parser
        self._selection = selection
        self._shows_reasoning = shows_reasoning
        self._reasoning: list[str] = []
        self.has_called = False

    def push(self, text: str, completion: Completion | None) -> list[Delta]:
        """Parse more text; return the deltas that became certain, with the completion all that remain.

        If a required call was cut off before its name was complete, its text is dropped, not returned as content.
        """
        found = self._parser.push(text) if text else []
        if completion is not None:
            is_cut = self._selection.must_call and completion.finish_reason != "stop"
            found = [*found, *(one for one in self._parser.finish() if not (is_cut and one.content))]
        if not self._selection.parallel:
            found = [one for one in found if one.tool is None or one.tool.index == 0]
        for one in found:
            if one.reasoning:
                self._reasoning.append(one.reasoning)
            if one.tool is not None:
                self.has_called = True
        return found if self._shows_reasoning else [replace(one, reasoning="") for one in found]

    def finish_reason(self, completion: Completion) -> FinishReason:
        """Return the finish reason in OpenAI's terms."""
        reason = finish.reason(completion)
        return "tool_calls" if reason == "stop" and self.has_called else reason

    def reasoning_tokens(self, completion: Completion, context: Context) -> int:
        """Return the number of reasoning tokens."""
        return counts.reasoning_tokens("".join(self._reasoning), completion.token_ids, context.tokenizer)
