"""What a frame costs the event loop: one for each token of each stream."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from infeng_demo import model_dir
from infeng_serve.protocol import chat, completions, responses
from infeng_tokenizers.api import HfTokenizer
from protocol_parts import context_of

from infeng_core.api import EngineConfig, Event, Logprob

EVENTS = [
    Event(0, f" word{i}", (i + 5,), None, (Logprob(i + 5, -0.5, ((i + 5, -0.5), (6, -1.0))),)) for i in range(500)
]
BODIES: dict[str, tuple[Any, dict[str, Any]]] = {
    "completions": (completions.read, {"prompt": "a"}),
    "completions-logprobs": (completions.read, {"prompt": "a", "logprobs": 1}),
    "chat": (chat.read, {"messages": [{"role": "user", "content": "Hi"}]}),
    "chat-usage": (
        chat.read,
        {
            "messages": [{"role": "user", "content": "Hi"}],
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        },
    ),
    "responses": (responses.read, {"input": "Hi"}),
}


@pytest.mark.parametrize("numbered", [False, True], ids=["plain", "numbered"])
@pytest.mark.parametrize("route", BODIES)
def test_a_frame(benchmark: Any, route: str, numbered: bool) -> None:
    """One of 500 frames of an answer; ``extra_info`` has microseconds of the best answer, each."""
    read, given = BODIES[route]
    context = context_of(HfTokenizer(model_dir(), EngineConfig()))
    body = json.dumps({"stream": True, **given}).encode()
    spent: list[int] = []

    def frames() -> None:
        answer = read(body, context)
        answer.numbered = numbered
        answer.opening()
        begin = time.thread_time_ns()
        for event in EVENTS:
            answer.frames(0, [event])
        spent.append(time.thread_time_ns() - begin)

    benchmark.pedantic(frames, rounds=20, warmup_rounds=2)
    benchmark.extra_info["us_per_frame"] = min(spent) / 1e3 / len(EVENTS)
