"""The output of /v1/responses: growing items, and the events that report their growth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from infeng_chat.template import Delta, ToolDelta

from infeng_serve.protocol.logprobs import TokenLogprob

Status = Literal["in_progress", "completed", "incomplete"]


class OutputText(msgspec.Struct, kw_only=True, tag="output_text", tag_field="type"):
    """The text of a message."""

    text: str = ""
    annotations: list[Any] = []
    logprobs: list[TokenLogprob] = []


class OutputMessage(msgspec.Struct, kw_only=True, tag="message", tag_field="type"):
    """A message of the model."""

    id: str
    role: Literal["assistant"] = "assistant"
    status: Status = "in_progress"
    content: list[OutputText] = []


class ReasoningText(msgspec.Struct, kw_only=True, tag="reasoning_text", tag_field="type"):
    """The text of reasoning."""

    text: str = ""


class ReasoningItem(msgspec.Struct, kw_only=True, tag="reasoning", tag_field="type"):
    """The model's reasoning before a message or call."""

    id: str
    summary: list[Any] = []
    content: list[ReasoningText] = []
    status: Status = "in_progress"


class FunctionCallItem(msgspec.Struct, kw_only=True, tag="function_call", tag_field="type"):
    """A call of a tool."""

    id: str
    call_id: str
    name: str
    arguments: str = ""
    status: Status = "in_progress"


Item = OutputMessage | ReasoningItem | FunctionCallItem
ItemEvent = tuple[str, dict[str, Any]]
"""An event's type, and its fields besides type and sequence number. Items in it must be encoded at once: they grow."""


class Items:
    """The growing output. Only the last item is open; pieces of an earlier call are dropped."""

    def __init__(self, call: str) -> None:
        """call: the call's id, which the ids of items contain."""
        self._call = call
        self._call_number: int | None = None  # the parser's number of the open call
        self._pieces: list[str] = []  # text of the last item that is not joined yet
        self.items: list[Item] = []
        self.is_open = False

    def push(self, deltas: Sequence[Delta], logprobs: Sequence[TokenLogprob] = ()) -> list[tuple[str, dict[str, Any]]]:
        """Add deltas; return the resulting events. logprobs: of the tokens up to the next text."""
        events: list[ItemEvent] = []
        for kind, text, tool in _runs(deltas):
            if kind == "tool":
                assert tool is not None
                events += self._call_piece(tool)
                continue
            events += self._begin(kind)
            events.append(self._text(kind, text, logprobs if kind == "message" else ()))
            logprobs = () if kind == "message" else logprobs
        return events

    def say(self, text: str) -> tuple[str, int] | None:
        """Add text to the open message and return its id and index; None if no message is open."""
        if not self.is_open or not isinstance(item := self.items[-1], OutputMessage):
            return None
        self._pieces.append(text)
        return item.id, len(self.items) - 1

    def settle(self) -> list[Item]:
        """Return the items with all text so far."""
        if self._pieces:
            item, text = self.items[-1], "".join(self._pieces)
            self._pieces = []
            if isinstance(item, FunctionCallItem):
                item.arguments += text
            else:
                item.content[0].text += text
        return self.items

    def more_logprobs(self, logprobs: Sequence[TokenLogprob]) -> list[ItemEvent]:
        """Add log-probabilities of tokens without text, if a message is open."""
        if not logprobs or not self.is_open or not isinstance(self.items[-1], OutputMessage):
            return []
        return [self._text("message", "", logprobs)]

    def finish(self, status: Status) -> list[ItemEvent]:
        """End the last item."""
        if not self.is_open:
            return []
        item, place = self.settle()[-1], len(self.items) - 1
        self.is_open = False
        self._call_number = None
        item.status = status
        where = {"item_id": item.id, "output_index": place}
        events: list[ItemEvent] = []
        if isinstance(item, FunctionCallItem):
            done = {**where, "name": item.name, "arguments": item.arguments}
            events.append(("response.function_call_arguments.done", done))
        else:
            part = item.content[0]
            where["content_index"] = 0
            said: dict[str, Any] = {**where, "text": part.text}
            if isinstance(part, OutputText):
                said["logprobs"] = part.logprobs
            events.append((f"response.{_words(part)}.done", said))
            events.append(("response.content_part.done", {**where, "part": part}))
        return [*events, ("response.output_item.done", {"output_index": place, "item": item})]

    def _begin(self, kind: str) -> list[ItemEvent]:
        """Open an item of a kind, unless the last one is of that kind."""
        wanted = OutputMessage if kind == "message" else ReasoningItem
        if self.is_open and isinstance(self.items[-1], wanted):
            return []
        events = self.finish("completed")
        place = len(self.items)
        item: Item
        part: OutputText | ReasoningText
        if kind == "message":
            item, part = OutputMessage(id=f"msg_{self._call}_{place}"), OutputText()
            events += self._add(item)
            item.content = [part]
        else:
            item, part = ReasoningItem(id=f"rs_{self._call}_{place}"), ReasoningText()
            events += self._add(item)
            item.content = [part]
        where = {"item_id": item.id, "output_index": place, "content_index": 0}
        return [*events, ("response.content_part.added", {**where, "part": msgspec.Raw(msgspec.json.encode(part))})]

    def _add(self, item: Item) -> list[ItemEvent]:
        self.items.append(item)
        self.is_open = True
        added = {"output_index": len(self.items) - 1, "item": msgspec.Raw(msgspec.json.encode(item))}
        return [("response.output_item.added", added)]

    def _text(self, kind: str, text: str, logprobs: Sequence[TokenLogprob]) -> ItemEvent:
        item = self.items[-1]
        assert not isinstance(item, FunctionCallItem)
        part = item.content[0]
        self._pieces.append(text)
        said: dict[str, Any] = {
            "item_id": item.id, "output_index": len(self.items) - 1, "content_index": 0, "delta": text
        }  # fmt: skip
        if isinstance(part, OutputText):
            part.logprobs = [*part.logprobs, *logprobs] if logprobs else part.logprobs
            said["logprobs"] = list(logprobs)
        return f"response.{_words(part)}.delta", said

    def _call_piece(self, tool: ToolDelta) -> list[ItemEvent]:
        events: list[ItemEvent] = []
        if tool.id is not None:
            events += self.finish("completed")
            name = f"fc_{self._call}_{len(self.items)}"
            events += self._add(FunctionCallItem(id=name, call_id=tool.id, name=tool.name or ""))
            self._call_number = tool.index
        if tool.index != self._call_number or not tool.arguments:
            return events
        self._pieces.append(tool.arguments)
        said = {"item_id": self.items[-1].id, "output_index": len(self.items) - 1, "delta": tool.arguments}
        return [*events, ("response.function_call_arguments.delta", said)]


def _runs(deltas: Sequence[Delta]) -> list[tuple[str, str, ToolDelta | None]]:
    """Return deltas as (kind, text, call), with consecutive texts of one kind merged."""
    found: list[tuple[str, str, ToolDelta | None]] = []
    for delta in deltas:
        for kind, text in (("reasoning", delta.reasoning), ("message", delta.content)):
            if text and found and found[-1][0] == kind:
                found[-1] = (kind, found[-1][1] + text, None)
            elif text:
                found.append((kind, text, None))
        if delta.tool is not None:
            found.append(("tool", "", delta.tool))
    return found


def _words(part: OutputText | ReasoningText) -> str:
    return "output_text" if isinstance(part, OutputText) else "reasoning_text"
