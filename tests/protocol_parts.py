"""What tests of the wire protocol share: a template with a parser, contexts, scripted answers, and a reader of SSE."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from infeng_chat.template import ChatPrompt, Delta, ToolDelta
from infeng_serve.protocol.answer import Answer, Context
from infeng_serve.protocol.errors import ApiError

from infeng_core.api import Adapters, Completion, Event, Logprob, RequestError, Timings, Tokenizer, Usage

TAG = re.compile(r"<(think|/think|call \w+|/call)>")
LONGEST_TAG = 16

TOOLS = [
    {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}},
    {"type": "function", "function": {"name": "sub", "description": "takes away"}},
]
SAID = "<think>Well,\n it is</think>Hello <b>w\u00f6rld</b> \U0001f642! "
CALLS = '<call add>{"a": 1, "b": "x\\n\u00fc"}</call><call sub>{}</call>'


class TagParser:
    """Reads ``<think>`` and ``<call NAME>``; what may be the beginning of a tag is held back."""

    reads_special_tokens = True

    def __init__(self, inside: bool, has_tools: bool) -> None:
        self._mode = "reasoning" if inside else "content"
        self._has_tools = has_tools
        self._calls = 0
        self._held = ""

    def push(self, text: str) -> list[Delta]:
        self._held += text
        return self._run(False)

    def finish(self) -> list[Delta]:
        return self._run(True)

    def _run(self, is_end: bool) -> list[Delta]:
        found: list[Delta] = []
        while True:
            tag = TAG.search(self._held)
            open_ = self._held.rfind("<")
            waits = not is_end and open_ >= 0 and len(self._held) - open_ < LONGEST_TAG
            cut = tag.start() if tag else open_ if waits else len(self._held)
            found += self._piece(self._held[:cut])
            if tag is None:
                self._held = self._held[cut:]
                return found
            self._held = self._held[tag.end() :]
            found += self._switch(tag[1], tag[0])

    def _piece(self, text: str) -> list[Delta]:
        if not text:
            return []
        if self._mode == "call":
            return [Delta(tool=ToolDelta(self._calls - 1, arguments=text))]
        return [Delta(reasoning=text) if self._mode == "reasoning" else Delta(content=text)]

    def _switch(self, tag: str, text: str) -> list[Delta]:
        if not self._has_tools and "call" in tag:
            return self._piece(text)
        self._mode = {"think": "reasoning", "/think": "content", "/call": "content"}.get(tag, "call")
        if not tag.startswith("call"):
            return []
        self._calls += 1
        return [Delta(tool=ToolDelta(self._calls - 1, f"call_{self._calls}", tag.removeprefix("call ")))]


class TagTemplate:
    """Writes a conversation as lines."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.calls: list[dict[str, Any]] = []

    def prompt(self, messages: Sequence[Mapping[str, Any]], **given: Any) -> ChatPrompt:
        self.calls.append({"messages": [dict(message) for message in messages], **given})
        if messages[-1].get("content") == "refuse me":
            raise RequestError("messages", "the template refuses them", "say something else")
        lines = [f"{message['role']}: {message.get('content') or ''}" for message in messages]
        opens = bool((given.get("variables") or {}).get("enable_thinking"))
        text = "\n".join(lines) + ("\n<think>" if opens else "\nassistant:")
        [ids] = self._tokenizer.encode([text], parse_special=False)
        end = "</think>" if opens else ""
        return ChatPrompt(text, tuple(ids), stop_token_ids=(7,), opens_reasoning=opens, reasoning_end=end)

    def parser(self, prompt: ChatPrompt, *, tools: Sequence[Mapping[str, Any]] = ()) -> TagParser:
        return TagParser(prompt.opens_reasoning, bool(tools))

    def call_grammar(
        self, tools: Sequence[Mapping[str, Any]], *, name: str | None = None, parallel: bool = True
    ) -> Mapping[str, Any] | None:
        names = [tool["function"]["name"] for tool in tools]
        return None if "unknown" in names else {"lark": f"calls {name or names} {parallel}"}


def context_of(tokenizer: Tokenizer, **given: Any) -> Context:
    """Return the context of a call to a model ``demo`` with the adapters ``bard`` and ``coder``."""

    def adapter_of(model: str) -> Adapters | None:
        if model == given.get("model", "demo"):
            return None
        if model in ("bard", "coder"):
            return model
        raise ApiError(404, f"the model {model!r} does not exist", param="model", code="model_not_found")

    known: dict[str, Any] = {
        "id": "abc",
        "own_id": "own",
        "created": 1_700_000_000,
        "tenant": "us",
        "model": "demo",
        "adapter_of": adapter_of,
        "tokenizer": tokenizer,
        "template": TagTemplate(tokenizer),
        "defaults": {},
        "context": 256,
    }
    return Context(**{**known, **given})


def body_of(**given: Any) -> bytes:
    """Return a body."""
    return json.dumps(given).encode()


def refusal(
    read: Callable[[bytes, Context], Answer], context: Context, body: bytes | None = None, **given: Any
) -> ApiError:
    """Return the error of a body."""
    try:
        read(body_of(**given) if body is None else body, context)
    except ApiError as error:
        return error
    raise AssertionError(f"{given} is not refused")


def scripted(
    tokenizer: Tokenizer, prompt: Sequence[int], text: str, finish_reason: Any = "stop", top: int | None = None
) -> list[Event]:
    """Return what an engine gives whose model writes ``text``, each token with ``top`` log-probabilities."""
    [ids] = tokenizer.encode([text], parse_special=False)
    [empty] = tokenizer.encode([""])
    tokens = [*ids[len(empty) :], *([tokenizer.eos_id] if finish_reason == "stop" else [])]
    detokenizer = tokenizer.detokenizer(prompt)
    pieces = [detokenizer.push(token) for token in tokens]
    pieces[-1] += detokenizer.finish()
    reported = [
        Logprob(token, -0.5 - index, tuple((token + k, -0.25 - index - k) for k in range(top or 0)))
        for index, token in enumerate(tokens)
    ]
    events = [
        Event(0, piece, (token,), None, () if top is None else (known,))
        for piece, token, known in zip(pieces, tokens, reported, strict=True)
    ]
    usage = Usage(len(prompt), len(tokens), 3, 1, 2)
    completion = Completion(
        "".join(pieces),
        tuple(tokens),  # type: ignore[arg-type]
        finish_reason,
        usage,
        1,
        Timings(0.0, 0.0, 0.0),
        () if top is None else tuple(reported),
    )
    return [*events[:-1], replace(events[-1], completion=completion)]


def batches(events: Sequence[Sequence[Event]], seed: int) -> Iterable[tuple[int, list[Event]]]:
    """Yield the events of choices as steps bring them, now and then several of a choice at a time."""
    chance = random.Random(seed)
    left = [list(one) for one in events]
    while any(left):
        choice = chance.choice([index for index, one in enumerate(left) if one])
        count = chance.choice([1, 1, 1, 2, 5])
        yield choice, left[choice][:count]
        del left[choice][:count]


def streamed(answer: Answer, events: Sequence[Sequence[Event]], seed: int = 0) -> list[bytes]:
    """Return the frames of a whole stream, one by one."""
    data = answer.opening()
    for choice, some in batches(events, seed):
        data += answer.frames(choice, some)
    return split(data + answer.closing())


def split(data: bytes) -> list[bytes]:
    """Return frames one by one."""
    assert not data or data.endswith(b"\n\n")
    return [frame + b"\n\n" for frame in data.split(b"\n\n")[:-1]]


def data_of(frame: bytes) -> Any:
    """Return the JSON of a frame."""
    [line] = [line for line in frame.split(b"\n") if line.startswith(b"data: ")]
    return json.loads(line.removeprefix(b"data: "))


def chunks(frames: Sequence[bytes]) -> list[Any]:
    """Return the JSON of all frames but the end mark."""
    assert frames[-1] == b"data: [DONE]\n\n"
    return [data_of(frame) for frame in frames[:-1]]


def id_of(frame: bytes) -> str | None:
    """Return the id of a frame."""
    found = re.search(rb"^id: (.*)$", frame, re.MULTILINE)
    return found[1].decode() if found else None
