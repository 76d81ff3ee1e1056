"""/v1/rerank and /v1/score: by yes or no of a reranker, by the cosine of embeddings, and where a model cannot."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dialect_parts import relabelled, speaking
from infeng_dialects.ranking import RERANK, SCORE
from infeng_dialects.ranking.pairs import INSTRUCTION, SYSTEM
from infeng_serve.auth import Keys
from serve_parts import Running

DOCUMENTS = ["the cat sat on the mat", "one and two are three", "cats"]


@pytest.fixture(scope="module")
def judging(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server whose model's name is that of a reranker, and whose tokenizer has yes and no."""
    folder = relabelled(tmp_path_factory.mktemp("models") / "tiny-Reranker", "yes", "no")
    with speaking(names=["demo"], overrides={"model.path": str(folder)}) as found:
        yield found


@pytest.fixture(scope="module")
def comparing() -> Iterator[Running]:
    with speaking(names=["demo"], rank="cosine") as found:
        yield found


def judged(served: Running, query: str, text: str, model: str | None = None, instruction: str = INSTRUCTION) -> float:
    """Return the probability of yes against no, from the engine's log-probabilities of the two words."""
    said = f"<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {text}"
    prompt = served.server.service.model.template.prompt(
        [{"role": "system", "content": SYSTEM}, {"role": "user", "content": said}]
    )
    ids = [served.engine.tokenizer.encode([word])[0][-1] for word in ("yes", "no")]
    yes, no = (served.engine.score(list(prompt.ids), [one], adapter=model)[0].logprob for one in ids)
    return 1 / (1 + math.exp(no - yes))


@pytest.mark.parametrize("model", ["demo", "bard"])
def test_a_reranker_scores_by_yes_against_no(judging: Running, model: str):
    reply = judging.ask("/v1/rerank", {"model": model, "query": "a cat", "documents": DOCUMENTS})
    assert reply.status == 200, reply.data
    results = reply.json["results"]
    adapter = None if model == "demo" else model
    wanted = [judged(judging, "a cat", text, adapter) for text in DOCUMENTS]
    assert [one["relevance_score"] for one in results] == pytest.approx(sorted(wanted, reverse=True), rel=1e-4)
    assert [one["index"] for one in results] == sorted(range(3), key=lambda index: -wanted[index])
    assert all(one["document"]["text"] == DOCUMENTS[one["index"]] for one in results)
    assert reply.json["usage"]["total_tokens"] > 3 * 40
    again = judging.ask("/v1/rerank", {"model": model, "query": "a cat", "documents": DOCUMENTS}).json["results"]
    assert again == results


def test_an_instruction_changes_the_question(judging: Running):
    body = {"query": "a cat", "documents": DOCUMENTS[:1], "instruction": "Find numbers"}
    [one] = judging.ask("/v1/rerank", body).json["results"]
    assert one["relevance_score"] == pytest.approx(
        judged(judging, "a cat", DOCUMENTS[0], instruction="Find numbers"), 1e-4
    )


def test_embeddings_score_by_their_cosine(comparing: Running):
    data = comparing.ask("/v1/embeddings", {"input": ["a cat", *DOCUMENTS]}).json["data"]
    query, *others = (np.array(one["embedding"]) for one in data)
    wanted = [float(query @ other) for other in others]
    results = comparing.ask("/v1/rerank", {"query": "a cat", "documents": DOCUMENTS}).json["results"]
    assert [one["relevance_score"] for one in results] == pytest.approx(sorted(wanted, reverse=True), abs=1e-5)
    scores = comparing.ask("/v1/score", {"text_1": "a cat", "text_2": DOCUMENTS}).json
    assert [one["score"] for one in scores["data"]] == pytest.approx(wanted, abs=1e-5)
    assert [(one["index"], one["object"]) for one in scores["data"]] == [(0, "score"), (1, "score"), (2, "score")]
    last = comparing.ask("/v1/score", {"text_1": "a cat", "text_2": DOCUMENTS, "pooling": "last"}).json["data"]
    assert last != scores["data"]


def test_pairs_are_scored_one_by_one_where_there_are_as_many_queries(comparing: Running):
    both = comparing.ask("/v1/score", {"queries": ["a", "cats"], "documents": ["a", "cats"]}).json["data"]
    assert [one["score"] for one in both] == pytest.approx([1, 1], abs=1e-5)


@pytest.mark.parametrize("path", RERANK)
def test_every_path_ranks_with_the_best_first(comparing: Running, path: str):
    body = {"query": "cats", "documents": ["x", {"text": "cats"}, "y"], "top_n": 1, "return_documents": False}
    [best] = comparing.ask(path, body).json["results"]
    assert best == {"index": 1, "relevance_score": pytest.approx(1, abs=1e-5)}


@pytest.mark.parametrize("path", SCORE)
def test_every_path_scores(comparing: Running, path: str):
    assert comparing.ask(path, {"text_1": "a", "text_2": "b"}).json["data"][0]["object"] == "score"


def test_a_model_that_ranks_nothing_is_refused_with_a_remedy(served: Running):
    for path, body in (("/v1/rerank", {"query": "a", "documents": ["b"]}), ("/score", {"text_1": "a", "text_2": "b"})):
        reply = served.ask(path, body)
        assert (reply.status, reply.json["error"]["code"]) == (400, "unsupported_model")
        assert "set dialects.rank" in reply.json["error"]["message"]


def test_a_tokenizer_without_the_words_is_refused_with_a_remedy():
    with speaking(names=["demo"], rank="yes_no") as found:
        reply = found.ask("/v1/rerank", {"query": "a", "documents": ["b"]})
        assert (reply.status, reply.json["error"]["code"]) == (400, "unsupported_model")


@pytest.mark.parametrize(
    ("path", "given", "param"),
    [
        ("/v1/rerank", {"documents": []}, "documents"),
        ("/v1/rerank", {"documents": ["a", 5]}, "documents[1]"),
        ("/v1/rerank", {"documents": ["a"] * 1025}, "documents"),
        ("/v1/rerank", {"documents": ["a"], "top_n": 0}, "top_n"),
        ("/v1/rerank", {"documents": ["a"], "model": "nobody"}, "model"),
        ("/v1/rerank", {"documents": ["x " * 5000]}, None),
        ("/v1/rerank", {"documents": ["a"], "truncate_prompt_tokens": 5}, "truncate_prompt_tokens"),
        ("/v1/score", {"text_2": "a"}, "text_1"),
        ("/v1/score", {"text_1": ["a", "b"], "text_2": ["a"]}, "text_1"),
        ("/v1/score", {"text_1": "a", "queries": "b", "text_2": "a"}, "text_1"),
    ],
)
def test_a_wrong_parameter_is_named(judging: Running, path: str, given: Any, param: str | None):
    body = {"query": "a", **given} if "rerank" in path else given
    reply = judging.ask(path, body)
    assert reply.status in (400, 404)
    assert param is None or reply.json["error"]["param"] == param


def test_a_key_is_asked_for(tmp_path: Path):
    with speaking(names=["demo"], rank="cosine", keys=Keys(["right"])) as found:
        body = {"query": "a", "documents": ["b"]}
        assert found.ask("/v1/rerank", body).status == 401
        assert found.ask("/v1/rerank", body, x_api_key="right").status == 200
