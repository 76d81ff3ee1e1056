"""Vectors over HTTP: those of the engine, of the model that is named, in both encodings."""

from __future__ import annotations

import base64

import numpy as np
import pytest
from serve_parts import Running

TEXTS = ["The king", "def add(a, b):"]


@pytest.mark.parametrize(("model", "adapter"), [(None, None), ("bard", "bard")])
@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_vectors_are_those_of_the_engine(served: Running, model: str | None, adapter: str | None, pooling: str):
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
        ({"input": [5] * 5000}, 400, "prompt"),
        ({"model": "nobody"}, 404, "model"),
        ({"colour": "red"}, 400, "colour"),
    ],
)
def test_what_cannot_be_is_named(served: Running, more: dict[str, object], status: int, param: str):
    reply = served.ask("/v1/embeddings", {"input": "x", **more})
    assert (reply.status, reply.json["error"]["param"]) == (status, param)
