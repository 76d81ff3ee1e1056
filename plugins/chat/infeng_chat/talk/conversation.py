"""A conversation with an engine: the messages so far, and the next answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from infeng_chat.contract import ChatTemplate, Delta
from infeng_core.api import Adapters, Completion, Engine, Request, SamplingParams, Stream, UsageError, read_json

Show = Callable[[Delta], object]
_ROLES = ("user", "assistant", "tool", "developer")


class Conversation:
    """The messages of a conversation, and the adapter and parameters of its answers."""

    def __init__(
        self,
        engine: Engine,
        template: ChatTemplate,
        params: SamplingParams,
        adapter: Adapters | None = None,
        system: str | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> None:
        """Start without messages. The engine must run on its own thread."""
        self.engine = engine
        self.adapter = adapter
        self.system = system or ""
        self.messages: list[dict[str, Any]] = []
        self.answers: list[Completion] = []
        """Answers of this session, for statistics."""
        self._template = template
        self._params = params
        self._variables = variables or {}

    def say(self, text: str, show: Show) -> None:
        """Send a message and stream the answer to ``show``; both are added to the conversation.

        Ctrl-C ends the answer, and its text so far is kept. After an InfengError the conversation is unchanged.
        """
        asked = [*self.messages, {"role": "user", "content": text}]
        system = [{"role": "system", "content": self.system}] if self.system else []
        prompt = self._template.prompt([*system, *asked], variables=self._variables)
        parser = self._template.parser(prompt)
        params = replace(
            self._params,
            stop=(*self._params.stop, *prompt.stop),
            stop_token_ids=(*self._params.stop_token_ids, *prompt.stop_token_ids),
            skip_special_tokens=not parser.reads_special_tokens,
        )
        stream = self.engine.submit(Request(prompt.ids, params, adapter=self.adapter))
        answer = _Answer(show)
        try:
            for event in stream:
                answer.take(parser.push(event.text))
        except KeyboardInterrupt:
            for text in _rest(stream):
                answer.take(parser.push(text))
        answer.take(parser.finish())
        self.answers.append(stream.result())
        self.messages = [*asked, answer.message()]

    def reset(self) -> None:
        """Remove all messages except the system message."""
        self.messages = []

    def save(self, path: Path) -> None:
        """Write the messages as JSON; raises UsageError if the file cannot be written."""
        document = {"system": self.system, "messages": self.messages}
        try:
            path.write_text(json.dumps(document, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
        except (OSError, ValueError) as error:
            raise UsageError(f"{path}", f"cannot be written ({error})", "name another file") from None

    def load(self, path: Path) -> None:
        """Replace the messages by a saved conversation; raises UsageError for a file that holds none."""
        document = read_json(path, "name a file of /save", kind=UsageError)
        messages = document.get("messages") if isinstance(document, dict) else document
        if not isinstance(messages, list) or not all(map(_is_message, messages)):
            raise UsageError(f"{path}", "it holds no conversation", "name a file of /save")
        self.messages = messages
        system = document.get("system", "") if isinstance(document, dict) else ""
        self.system = system if isinstance(system, str) else ""


class _Answer:
    """Collects an answer and shows it."""

    def __init__(self, show: Show) -> None:
        self._show = show
        self._content: list[str] = []
        self._reasoning: list[str] = []

    def take(self, deltas: list[Delta]) -> None:
        for delta in deltas:
            self._content.append(delta.content)
            self._reasoning.append(delta.reasoning)
            self._show(delta)

    def message(self) -> dict[str, Any]:
        reasoning = "".join(self._reasoning)
        message = {"role": "assistant", "content": "".join(self._content)}
        return message | ({"reasoning_content": reasoning} if reasoning else {})


def _rest(stream: Stream) -> list[str]:
    """Cancel an answer; return the texts that had arrived and were not read yet."""
    while True:
        try:
            stream.cancel()
            return [event.text for event in stream]
        except KeyboardInterrupt:
            continue  # a second Ctrl-C: the answer is ending already


def _is_message(message: Any) -> bool:
    return isinstance(message, dict) and message.get("role") in _ROLES and isinstance(message.get("content"), str)
