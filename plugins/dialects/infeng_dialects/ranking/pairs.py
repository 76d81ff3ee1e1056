"""Scores of pairs of a query and a document: by the model's yes or no, or by the cosine of embeddings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from infeng_serve.api import ApiError, Call, Service
from infeng_serve.api.dialects import (
    ChatRequest,
    Context,
    EmbeddingRequest,
    Model,
    Streams,
    owned,
    place,
    prompt_of,
    texts_of,
)

from infeng_core.api import Completion, EndedError, Engine, Request, SamplingParams, Tokenizer
from infeng_dialects.ranking.parameters import Ranking

INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
"""The default instruction, the one that Qwen3-Reranker was trained with (its model card)."""

SYSTEM = (
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided. "
    'Note that the answer can only be "yes" or "no".'
)
"""The system message that it was trained with."""

MOST_LIKELY = 256
"""Likely tokens that a step reports; the word that loses is nearly always among them."""

Pair = tuple[str, str]
"""A query and a document."""


class Scores(NamedTuple):
    """The scores of pairs."""

    values: list[float]
    """In the order of the pairs: probabilities of yes, or cosines."""
    tokens: int
    """Tokens of all prompts."""


class Scoring:
    """Pairs that are ready to be scored."""

    def scored(self, engine: Engine, streams: Streams) -> Scores:
        """Return the scores. Blocks; raises EndedError if the client leaves."""
        raise NotImplementedError


def kind_of(setting: str, model: Model, name: str) -> str:
    """Return how a model ranks, yes_no or cosine; raises ApiError if it cannot.

    setting: ``dialects.rank``. With auto, the name of the model's folder decides.
    """
    if setting in ("yes_no", "cosine"):
        return setting
    folder = str(model.engine.config.model.path).rstrip("/").rpartition("/")[2].lower()
    if setting == "auto" and "rerank" in folder:
        return "yes_no"
    if setting == "auto" and "embed" in folder:
        return "cosine"
    why = f"the model {name[:200]} ranks no documents here"
    remedy = "serve a reranker or an embedding model, or set dialects.rank to yes_no or cosine"
    raise ApiError(400, f"{why}: {remedy}.", param="model", code="unsupported_model")


def scoring(
    pairs: Sequence[Pair], given: Ranking, kind: str, service: Service, call: Call, context: Context
) -> Scoring:
    """Return what scores pairs. Slow: renders and tokenizes. Raises ApiError."""
    if kind == "cosine":
        return Cosines(pairs, given, service, call, context)
    return Judgements(pairs, given, service, call, context)


class Cosines(Scoring):
    """Scores by the cosine of embeddings; each text is embedded once."""

    def __init__(self, pairs: Sequence[Pair], given: Ranking, service: Service, call: Call, context: Context) -> None:
        """Tokenize; raises ApiError."""
        self._pairs = pairs
        self._texts = list(dict.fromkeys(text for pair in pairs for text in pair))
        wanted = EmbeddingRequest(
            model=given.model, input=self._texts, pooling=given.pooling, priority=given.priority, timeout=given.timeout
        )
        self._asked = texts_of(wanted, service, call, context)

    def scored(self, engine: Engine, streams: Streams) -> Scores:
        """Return the scores. Blocks."""
        vectors = dict(zip(self._texts, self._asked.embedded(engine, streams), strict=True))
        return Scores([float(vectors[query] @ vectors[text]) for query, text in self._pairs], self._asked.tokens)


class Judgements(Scoring):
    """Scores by the probability of yes against no, as a generative reranker answers."""

    def __init__(self, pairs: Sequence[Pair], given: Ranking, service: Service, call: Call, context: Context) -> None:
        """Render and tokenize; raises ApiError."""
        self._yes, self._no = (_word(word, context.tokenizer) for word in ("yes", "no"))
        likely = min(MOST_LIKELY, service.model.engine.model.config.vocab)
        params = SamplingParams(temperature=0.0, max_tokens=1, allowed_token_ids=(self._yes, self._no), logprobs=likely)
        priority, timeout = place(given.priority, given.timeout)
        adapter = context.adapter_of(given.model or context.model)
        request = Request((0,), params, priority=priority, adapter=adapter, timeout=timeout)
        request = owned(request, call.caller, service.settings.request_timeout)
        self._requests = []
        for query, text in pairs:
            context.check()
            self._requests.append(replace(request, prompt=_prompt(query, text, given.instruction, context)))

    def scored(self, engine: Engine, streams: Streams) -> Scores:
        """Return the scores. Blocks."""
        completions = run(self._requests, engine, streams)
        found = [self._likelihoods(completion) for completion in completions]
        # A word beyond the likely tokens gets a step of its own, which finds its prompt in the cache.
        for word in (self._yes, self._no):
            missing = [index for index, known in enumerate(found) if word not in known]
            requests = [self._of_word(self._requests[index], word) for index in missing]
            for index, completion in zip(missing, run(requests, engine, streams), strict=True):
                found[index][word] = completion.logprobs[0].logprob
        values = [1 / (1 + math.exp(min(700.0, known[self._no] - known[self._yes]))) for known in found]
        return Scores(values, sum(completion.usage.prompt_tokens for completion in completions))

    def _likelihoods(self, completion: Completion) -> dict[int, float]:
        """Return the log-probabilities of yes and no, as far as the completion has them."""
        [one] = completion.logprobs
        known = {one.token: one.logprob, **dict(one.top)}
        return {word: known[word] for word in (self._yes, self._no) if word in known}

    @staticmethod
    def _of_word(request: Request, word: int) -> Request:
        return replace(request, params=replace(request.params, allowed_token_ids=(word,), logprobs=0))


def run(requests: Sequence[Request], engine: Engine, streams: Streams) -> list[Completion]:
    """Return the completions of requests, admitted together. Blocks; raises EndedError for one that was cut off."""
    begun = []
    try:
        for index, request in enumerate(requests):
            streams.check()
            begun.append(engine.submit(request, follows=index > 0))
            streams.add(begun[-1])
        found = [stream.result() for stream in begun]
    except BaseException:
        for stream in begun:
            stream.cancel()
        raise
    if any(one.finish_reason in ("cancelled", "timeout") for one in found):
        raise EndedError("documents", "the call ended before all of them were read", "give it more time")
    return found


def _word(word: str, tokenizer: Tokenizer) -> int:
    [ids] = tokenizer.encode([word], parse_special=False)
    ids = ids[1:] if ids[:1] == [tokenizer.bos_id] else ids
    if len(ids) != 1:
        why = f"the word {word} is {len(ids)} tokens of this model: set dialects.rank to cosine, or serve a reranker"
        raise ApiError(400, f"{why}.", param="model", code="unsupported_model")
    return ids[0]


def _prompt(query: str, text: str, instruction: str | None, context: Context) -> tuple[int, ...]:
    said = f"<Instruct>: {instruction or INSTRUCTION}\n<Query>: {query}\n<Document>: {text}"
    asked = ChatRequest(
        messages=[{"role": "system", "content": SYSTEM}, {"role": "user", "content": said}], enable_thinking=False
    )
    ids = prompt_of(asked, context, len(said)).ids
    if len(ids) >= context.context:
        why = f"documents: a pair is {len(ids)} tokens, and the context {context.context}: shorten it"
        raise ApiError(400, why, param="documents", code="context_length_exceeded")
    return ids
