"""The model ``infeng`` of lm-evaluation-harness, and the harness's command with this model.

``python -m infeng_quality.harness run --model infeng --model_args pretrained=DIR,format=int8-row --tasks ...`` runs
``lm_eval`` in an environment with ``infeng-quality[lm-eval]``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from infeng_core.api import Engine, Logprob, Request, RequestError, SamplingParams, UsageError
from infeng_quality import models

NAME = "infeng"
MAX_TOKENS = 256


class Answers:
    """The harness's three kinds of requests, answered by an engine, independent of the harness's code."""

    def __init__(self, engine: Engine) -> None:
        """Answer by ``engine``."""
        self.engine = engine
        self.context = engine.limits.context

    def loglikelihood(self, context: str, continuation: str) -> tuple[float, bool]:
        """Return the log-probability of a continuation of a context, and whether greedy decoding would generate it.

        As in the harness, trailing spaces of the context belong to the continuation, and a text that is too long loses
        its beginning.
        """
        kept = context.rstrip()
        continuation = context[len(kept) :] + continuation
        both = self._ids(kept + continuation)
        before = self._ids(kept) if kept else both[: self._prefix(both)]
        begin = min(self._same(before, both), len(both) - 1)
        if begin < 1:
            both, begin = [self._start(), *both], 1
        return self.read(both, begin)

    def read(self, ids: Sequence[int], begin: int) -> tuple[float, bool]:
        """Return the log-probability of ``ids[begin:]`` after ``ids[:begin]``, and whether each is the most likely.

        One position of the context must stay free. Raises RequestError if ``ids[begin:]`` alone fills it.
        """
        drop = max(0, len(ids) - (self.context - 1))
        if drop >= begin:
            raise RequestError(f"continuation of {len(ids) - begin} tokens", "it fills the context", "shorten it")
        found = self._logprobs(ids[drop:])[begin - drop :]
        is_greedy = all(one.top[0][0] == one.token for one in found)
        return float(sum(one.logprob for one in found)), is_greedy

    def rolling(self, text: str) -> float:
        """Return the log-probability of a whole text, each token predicted once, in windows of the full context."""
        ids = self._ids(text)
        if not self._prefix(ids):
            ids = [self._start(), *ids]
        return sum(
            self.read(ids[first:end], begin - first)[0] for first, begin, end in rolled(len(ids), self.context - 1)
        )

    def generate(self, prompts: Iterable[tuple[str, Mapping[str, Any]]]) -> list[str]:
        """Return continuations of texts, each until one of its stop strings; a long text loses its beginning.

        ``max_tokens`` leaves a text at least half of the context, and an answer ends with the context.
        """
        requests = []
        for text, options in prompts:
            params = parameters(options)
            room = max(self.context // 2, self.context - params.max_tokens)
            ids = self._ids(text)
            keep = self._prefix(ids)
            if len(ids) > room:
                ids = [*ids[:keep], *ids[keep:][-(room - keep) :]] if room > keep else ids[-room:]
            requests.append(Request(tuple(ids or [self._start()]), params))
        return [one.text for one in self.engine.generate(requests)] if requests else []

    def _logprobs(self, ids: Sequence[int]) -> list[Logprob]:
        """Return the log-probability of each token; the first token, which has no context, gets 0."""
        params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=1)
        found = self.engine.generate(Request(tuple(ids), params))[0].prompt_logprobs
        return [one if one is not None else Logprob(ids[0], 0.0, ((ids[0], 0.0),)) for one in found]

    def _ids(self, text: str) -> list[int]:
        return list(self.engine.tokenizer.encode([text])[0])

    def _prefix(self, ids: Sequence[int]) -> int:
        """Return the number of tokens that the tokenizer adds before a text, 0 or 1."""
        bos = self.engine.tokenizer.bos_id
        return int(bos is not None and list(ids[:1]) == [bos])

    def _start(self) -> int:
        """Return the token to put before a text without context; raises UsageError if there is none."""
        for token in (self.engine.tokenizer.bos_id, self.engine.model.config.bos_id, self.engine.tokenizer.eos_id):
            if token is not None:
                return int(token)
        raise UsageError("tokenizer", "it has no token that begins a text", "give texts with a context")

    @staticmethod
    def _same(before: Sequence[int], both: Sequence[int]) -> int:
        pairs = zip(before, both, strict=False)
        return next((at for at, (old, new) in enumerate(pairs) if old != new), min(len(before), len(both)))


def rolled(tokens: int, window: int) -> Iterator[tuple[int, int, int]]:
    """Yield (first, begin, end): tokens [begin, end) are predicted after [first, begin), each but token 0 once.

    Windows have ``window`` tokens; the last one overlaps its predecessor and predicts the remaining tokens.
    """
    begin = 1
    while begin < tokens:
        end = min(begin - 1 + window, tokens)
        yield max(0, end - window), begin, end
        begin = end


def parameters(options: Mapping[str, Any]) -> SamplingParams:
    """Return the parameters of a request from the harness's ``gen_kwargs``; raises UsageError."""
    given = dict(options)
    until = given.pop("until", None) or []
    stop = tuple(one for one in ([until] if isinstance(until, str) else until) if one)
    sample = bool(given.pop("do_sample", False))
    temperature = float(given.pop("temperature", 1.0 if sample else 0.0))
    names = ("max_gen_toks", "max_tokens", "max_new_tokens")
    most = [int(given.pop(name)) for name in names if name in given]
    kept = {name: given[name] for name in ("top_p", "top_k", "min_p", "seed") if given.get(name) is not None}
    return SamplingParams(
        temperature=temperature if sample else 0.0, max_tokens=(most or [MAX_TOKENS])[0], stop=stop, **kept
    )


def opened(pretrained: str, **settings: Any) -> Engine:
    """Load the model of ``model_args``: ``pretrained`` or ``model``, ``format``, ``kv``, ``threads``, settings."""
    names = {"format": "model.format", "kv": "kv_cache.dtype", "threads": "threads.count"}
    return models.open_model(pretrained, {names.get(name, name): value for name, value in settings.items()})


def model_class(base: type) -> type:
    """Return the model as a subclass of ``base``, which is the harness's ``LM``."""

    class InfengLM(base):  # type: ignore[misc]  # any class
        """INF-ENG in the harness."""

        def __init__(self, pretrained: str | None = None, model: str | None = None, **settings: Any) -> None:
            """Load a model; see ``opened``. Arguments that the harness adds for other models are dropped."""
            super().__init__()
            reference = pretrained or model
            if not reference:
                raise UsageError("model_args", "no model is named", "write pretrained=DIRECTORY")
            dropped = ("batch_size", "max_batch_size", "device", "trust_remote_code")
            given = {name: value for name, value in settings.items() if name not in dropped}
            self._answers = Answers(opened(str(reference), **given))

        def loglikelihood(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
            """Return (log-probability, is greedy) of each continuation."""
            return self._each("loglikelihood", requests, self._answers.loglikelihood)

        def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
            """Return the log-probability of each text."""
            return self._each("loglikelihood_rolling", requests, self._answers.rolling)

        def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
            """Return the continuation of each text."""
            found = self._answers.generate([one.args for one in requests])
            for one, text in zip(requests, found, strict=True):
                self.cache_hook.add_partial("generate_until", one.args, text)
            return found

        def _each(self, kind: str, requests: Sequence[Any], answer: Any) -> list[Any]:
            found = []
            for one in requests:
                found.append(answer(*one.args))
                self.cache_hook.add_partial(kind, one.args, found[-1])
            return found

        @property
        def tokenizer_name(self) -> str:
            """The model's directory, which has the tokenizer."""
            return str(self._answers.engine.model.tokenizer_dir)

    return InfengLM


def register() -> type:
    """Register the model as ``infeng`` in the harness and return its class. Raises UsageError without the harness."""
    try:
        from lm_eval.api.model import LM
        from lm_eval.api.registry import register_model
    except ImportError as error:
        raise UsageError("lm-eval", f"{error.name} is not installed", "pip install 'infeng-quality[lm-eval]'") from None
    made = model_class(LM)
    register_model(NAME)(made)
    return made


def main() -> int:
    """Run the harness's command."""
    try:
        register()
    except UsageError as error:
        print(f"infeng_quality.harness: {error}", file=sys.stderr)
        return error.exit_status
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()
    return 0


if __name__ == "__main__":
    sys.exit(main())
