"""Vectors over HTTP: those of the engine, of the model that is named, in both encodings."""

from __future__ import annotations

import base64
import threading
from types import ModuleType

import numpy as np
import pytest
from infeng_serve.routes import adapters, embeddings
from serve_parts import Running, connected, posted, slowed, stepping, until

TEXTS = ["The king", "def add(a, b):"]


@pytest.mark.parametrize(("model", "adapter"), [(None, None), ("bard", "bard")])
@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_vectors_equal_the_engines(served: Running, model: str | None, adapter: str | None, pooling: str):
    expected = served.engine.embed(TEXTS, pooling=pooling, adapters=adapter)
    body = {"input": TEXTS, "pooling": pooling, **({"model": model} if model else {})}
    found = served.ask("/v1/embeddings", body).json
    assert [one["index"] for one in found["data"]] == [0, 1]
    for one, vector in zip(found["data"], expected, strict=True):
        assert np.array_equal(np.array(one["embedding"], np.float32), vector)
    packed = served.ask("/v1/embeddings", {**body, "encoding_format": "base64"}).json
    for one, vector in zip(packed["data"], expected, strict=True):
        assert np.array_equal(np.frombuffer(base64.b64decode(one["embedding"]), "<f4"), vector)
    assert found["usage"]["prompt_tokens"] == sum(len(served.engine.tokenize(text)) for text in TEXTS)


@pytest.mark.parametrize(
    ("more", "status", "param"),
    [
        ({"dimensions": 3}, 400, "dimensions"),
        ({"input": []}, 400, "input"),
        ({"input": [5] * 5000}, 400, "input"),
        ({"model": "nobody"}, 404, "model"),
        ({"colour": "red"}, 400, "colour"),
    ],
)
def test_what_cannot_be_is_named(served: Running, more: dict[str, object], status: int, param: str):
    reply = served.ask("/v1/embeddings", {"input": "x", **more})
    assert (reply.status, reply.json["error"]["param"]) == (status, param)


@pytest.mark.parametrize(
    ("module", "path", "body"),
    [
        (embeddings, "/v1/embeddings", {"input": "x"}),
        (adapters, "/v1/load_lora_adapter", {"lora_name": "a", "lora_path": "nowhere"}),
        (adapters, "/lora-adapters", []),
    ],
    ids=["embeddings", "load", "mix"],
)
def test_a_body_is_read_on_a_thread_of_its_own(
    served: Running, module: ModuleType, path: str, body: object, monkeypatch: pytest.MonkeyPatch
):
    threads: list[threading.Thread] = []
    decode = module.decode

    def seen(*args: object) -> object:
        threads.append(threading.current_thread())
        return decode(*args)

    monkeypatch.setattr(module, "decode", seen)
    assert served.ask(path, body).status in (200, 403)
    [thread] = threads
    assert thread.name.startswith("infeng-read") and thread is not served.thread


def test_a_client_that_leaves_during_an_embedding_frees_its_blocks(served: Running, monkeypatch: pytest.MonkeyPatch):
    long = [[5 + index] + [7] * 900 for index in range(8)]
    client = connected(served.address)
    left, leave = threading.Event(), embeddings.Streams.leave

    def leaves(streams: embeddings.Streams) -> None:
        leave(streams)
        left.set()

    monkeypatch.setattr(embeddings.Streams, "leave", leaves)
    with stepping(served.engine, 0.05) as steps:
        client.sendall(posted("/v1/embeddings", {"input": long}))
        assert until(lambda: served.blocks_in_use() > 0)
        steps.allow(0)
        client.close()
        assert left.wait(30)
        steps.allow(2)  # all of them take 15
        assert until(lambda: served.blocks_in_use() == 0 and not served.server.service.limits.calls)
    assert served.ask("/v1/embeddings", {"input": "x"}).status == 200


def test_an_embedding_that_exceeds_its_timeout_is_408(served: Running):
    with slowed(served.engine, 0.05):
        reply = served.ask("/v1/embeddings", {"input": [[7] * 1000, [8] * 1000], "timeout": 0.01})
    assert (reply.status, reply.json["error"]["code"]) == (408, "timeout")
