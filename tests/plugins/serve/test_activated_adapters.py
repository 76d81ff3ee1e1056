"""An activated adapter over HTTP: a model of its own, whose calls find what others computed before its invocation."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from infeng_client import Client
from infeng_demo import adapter_dir
from serve_parts import Running, running

INVOCATION = [61, 62, 63]
TALK = [5 + i % 40 for i in range(100)]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server that lends adapters from a folder with two activated ones."""
    folder = tmp_path_factory.mktemp("adapters")
    for name, kind in (("judge", "python"), ("poet", "shakespeare")):
        path = Path(shutil.copytree(adapter_dir(kind), folder / name)) / "adapter_config.json"
        config = json.loads(path.read_text()) | {"alora_invocation_tokens": INVOCATION}
        path.write_text(json.dumps(config))
    with running(lora_roots=(str(folder),)) as found:
        for name in ("judge", "poet"):
            reply = found.ask("/v1/load_lora_adapter", {"lora_name": name, "lora_path": name})
            assert reply.status == 200, reply.data
        yield found


def ask(served: Running, prompt: list[int], model: str | None, **more: Any) -> tuple[list[str], int]:
    """Return the texts of a completion, and how many tokens of its prompt were cached."""
    body = {"prompt": prompt, "max_tokens": 6, "temperature": 0, "ignore_eos": True, **more}
    reply = served.ask("/v1/completions", {**body, "model": model} if model else body)
    assert reply.status == 200, reply.data
    texts = [choice["text"] for choice in reply.json["choices"]]
    return texts, reply.json["usage"]["prompt_tokens_details"]["cached_tokens"]


def test_a_chain_of_calls_reads_the_conversation_once(served: Running):
    calls = [(TALK, None), ([*TALK, *INVOCATION], "judge"), ([*TALK, 7], None), ([*TALK, *INVOCATION], "poet")]
    found = [ask(served, prompt, model) for prompt, model in calls]
    assert [count for _, count in found] == [0, 96, 96, 96]
    for (prompt, model), (texts, _) in zip(calls, found, strict=True):
        assert ask(served, prompt, model, cache_salt="nobody's")[0] == texts
    assert len({texts[0] for texts, _ in found}) > 2


def test_without_its_invocation_it_answers_as_the_base(served: Running):
    assert ask(served, TALK[:40], "judge")[0] == ask(served, TALK[:40], None)[0]
    assert ask(served, [*INVOCATION, *TALK[:40]], "judge")[0] != ask(served, [*INVOCATION, *TALK[:40]], None)[0]


def test_choices_share_the_prompt_behind_the_invocation_too(served: Running):
    prompt = [*TALK[:20], *INVOCATION, *TALK[:60]]
    sampled = {"n": 3, "temperature": 1.0, "seed": 5}
    texts, _ = ask(served, prompt, "judge", **sampled)
    again, count = ask(served, prompt, "judge", **sampled)
    assert again == texts and len(set(texts)) > 1
    assert count == 80
    assert ask(served, prompt, "poet")[1] == 16


def test_the_client_counts_what_was_found_and_gets_the_vectors_of_the_adapter(served: Running):
    prompt = [*TALK[10:90], *INVOCATION]
    with Client(served.url) as client:
        greedy = {"max_tokens": 6, "temperature": 0, "ignore_eos": True}
        client.complete(prompt[:80], **greedy)
        answer = client.complete(prompt, model="judge", **greedy)
        assert answer.usage is not None and answer.usage.cached_tokens == 80
        assert [answer.text] == ask(served, prompt, "judge", cache_salt="nobody's")[0]
        texts = [served.engine.tokenizer.decode(TALK[:20]), "The king"]
        found, plain = client.embed(texts, model="bard").vectors, client.embed(texts).vectors
    expected = served.engine.embed(texts, adapters="bard")
    assert np.array_equal(np.array(found, np.float32), np.array(expected))
    assert found != plain
