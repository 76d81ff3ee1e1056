"""One answer as it grows: its text goes through a parser, which tells reasoning, content and calls apart."""

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
    """Follows one answer through its parser."""

    def __init__(self, parser: OutputParser, selection: Selection, *, shows_reasoning: bool = True) -> None:
        """Follow ``parser``.

        selection: whether calls after the first are given out, and whether there can be anything but calls.
        shows_reasoning: whether reasoning is given out.
        """
        self._parser = parser
        self._selection = selection
        self._shows_reasoning = shows_reasoning
        self._reasoning: list[str] = []
        self.has_called = False

    def push(self, text: str, completion: Completion | None) -> list[Delta]:
        """Take more text; return what became certain, all of it with the completion.

        Where a call had to come and was cut off before its name was whole, what there is of it is no content.
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
        """Return why the answer ended."""
        reason = finish.reason(completion)
        return "tool_calls" if reason == "stop" and self.has_called else reason

    def reasoning_tokens(self, completion: Completion, context: Context) -> int:
        """Return how many tokens were reasoning."""
        return counts.reasoning_tokens("".join(self._reasoning), completion.token_ids, context.tokenizer)
