"""Submission: every request is checked, given its parts and put in flight as a stream."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

from infeng_core.batch import RunningRequest
from infeng_core.engine.driver import Driver
from infeng_core.engine.lifetime import Lifetime
from infeng_core.errors import EndedError, PluginError
from infeng_core.requests.chain import Chains
from infeng_core.requests.input import InputProcessor, Prompt
from infeng_core.requests.output import Event, Output
from infeng_core.requests.pooling import Pooled
from infeng_core.requests.processors import Vocabulary
from infeng_core.requests.request import Adapters, Logprob, Request, SamplingParams
from infeng_core.requests.sampler import draw_seed
from infeng_core.requests.stream import Reader, Stream
from infeng_core.scheduling.drafts import DraftedRequest, Guesses

if TYPE_CHECKING:
    from infeng_core.engine.assembly import Parts
    from infeng_core.scheduling.payoff import Payoff

CHARACTERS_PER_TOKEN = 8
"""Most characters per token; by this bound some texts are refused before tokenization."""

Prepared = tuple[Request, list[int]]
"""A request and the token ids of its prompt."""


class Submissions:
    """The work of an engine on prompts before the next step. Any thread may call any method."""

    def __init__(self, parts: Parts, driver: Driver, cancel: Callable[[Output], None], lifetime: Lifetime) -> None:
        """Accept requests for an engine of these parts.

        driver: runs the steps for which a stream's reader waits. cancel: ends a request soon.
        """
        shape = parts.model.config
        self.inputs = InputProcessor(
            parts.tokenizer,
            vocab=shape.vocab,
            bos_id=shape.bos_id,
            context=parts.limits.context,
            bound=parts.context_bound,
        )
        self._eos_ids = parts.eos_ids
        vocabulary = Vocabulary(parts.tokenizer, shape.vocab, self._eos_ids, parts.model.tokenizer_dir)
        self._processors = Chains(parts.logit_processor, vocabulary)
        self._parts = parts
        self._driver = driver
        self._cancel = cancel
        self._lifetime = lifetime
        self._ids = itertools.count()
        self._payoff: Payoff | None = None
        self.drafters_see = False
        """Whether a drafter wanted hidden states."""

    def prepare(self, prompts: Any, params: SamplingParams | None = None, adapters: Any = None) -> list[Prepared]:
        """Return every prompt as a request with its ids; raises RequestError or AdapterError."""
        self._lifetime.check()
        observers, take = self._parts.observers, self.inputs.take
        prepared = (
            observers.timed("tokenize", take, prompts, params, adapters)
            if observers.present
            else take(prompts, params, adapters)
        )
        for request, _ in prepared:
            if request.adapter is not None:
                self._parts.registry.check(request.adapter)
        return prepared

    def start_all(self, prepared: Iterable[Prepared], ready: deque[Output] | None = None) -> list[Stream]:
        """Put all requests in flight, or none; ``ready`` gets an output for each of their events."""
        streams: list[Stream] = []
        try:
            for index, (request, ids) in enumerate(prepared):
                streams.append(self.start(request, ids, index, ready))
        except BaseException:
            abandon(streams)
            raise
        return streams

    def submit(
        self,
        prompt: Prompt,
        params: SamplingParams | None,
        adapter: Adapters | None,
        index: int,
        ready: deque[Output] | None,
        *,
        follows: bool = False,
    ) -> Stream:
        """Put one request in flight, as ``Engine.submit`` describes."""
        request = Request.of(prompt, params, adapter)
        if not follows:
            tokens = len(request.prompt) // (CHARACTERS_PER_TOKEN if isinstance(request.prompt, str) else 1)
            self.check_room(tokens, tenant=request.tenant)
        [(request, ids)] = self.prepare([request])
        if not follows:
            self.check_room(len(ids), tenant=request.tenant)
        return self.start(request, ids, index, ready)

    def check_room(self, tokens: int, coming: int = 0, tenant: str = "") -> None:
        """Raise the OverloadedError of a tenant's request with ``tokens`` tokens, after ``coming`` others."""
        self._lifetime.check()
        self._parts.schedulers.backlog.check(tokens, coming, tenant)

    def score(self, prompt: Prompt, continuation: str | Iterable[int], adapter: Adapters | None) -> tuple[Logprob, ...]:
        """Return the log-probabilities of a continuation's tokens, as ``Engine.score`` describes."""
        self._lifetime.check()
        request, begin = self.inputs.joined(prompt, continuation, adapter)
        [(request, ids)] = self.prepare([request])
        completion = self.start(request, ids, report_from=begin - 1).result()
        if completion.finish_reason in ("cancelled", "timeout"):
            raise EndedError("continuation", "it ended before all of it was computed", "give it more time")
        return tuple(one for one in completion.prompt_logprobs[begin:] if one is not None)

    def events(self, prepared: Iterable[Prepared]) -> Iterator[Event]:
        """Yield the events of requests as they come; if the caller stops early, unfinished requests are cancelled."""
        ready: deque[Output] = deque()
        streams = self.start_all(prepared, ready)
        unfinished = len(streams)
        try:
            while unfinished:
                self._driver.run_until(lambda: bool(ready))
                event = ready.popleft().next_event()
                if event is not None:
                    unfinished -= event.completion is not None
                    yield event
        finally:
            abandon(streams)

    def start(
        self,
        request: Request,
        ids: list[int],
        index: int = 0,
        ready: deque[Output] | None = None,
        *,
        report_from: int | None = None,
        pooling: Pooled | None = None,
    ) -> Stream:
        """Put a prepared request in flight.

        report_from: the first token of the prompt whose log-probability is wanted. pooling: takes its hidden states.
        """
        self._lifetime.check()
        params = request.params
        sequence = self._sequence(request, ids)
        sequence.report_from = 0 if params.prompt_logprobs is not None else report_from
        sequence.pooling = pooling
        ends = frozenset((*params.stop_token_ids, *(() if params.ignore_eos else self._eos_ids)))
        sequence.processors = self._processors.start(params, ids, ends)
        # A tokenizer without special tokens need not accept the argument.
        spelled = {} if params.skip_special_tokens else {"skip_special_tokens": False}
        output = Output(sequence, partial(self._parts.tokenizer.detokenizer, ids, **spelled), ends, index, ready)
        if request.adapter is not None:
            reference = self._parts.registry.refer(request.adapter, sequence.tokens[: len(ids)])
            reference.owner = output
            sequence.adapters = reference
        stream = Stream(output, self._driver.run_until, self._cancel, self._driver.arrival)
        in_flight = self._parts.in_flight
        Reader(stream, in_flight.commands.append, output)
        in_flight.submit(output)
        self.ring()
        return stream

    def ring(self) -> None:
        """Wake sleeping threads, because there is a command."""
        self._parts.registry.notify()
        self._driver.notify()

    def _sequence(self, request: Request, ids: list[int]) -> RunningRequest:
        params = request.params
        capacity = min(len(ids) + params.max_tokens, self._parts.limits.context)
        seed = draw_seed() if params.seed is None else params.seed
        sequence = RunningRequest.start(next(self._ids), request, ids, capacity, seed)
        sequence.arrived = perf_counter()
        if request.timeout is not None:
            sequence.deadline = sequence.arrived + request.timeout
        if self._parts.drafter is not None:
            sequence.guesses = self._guesses(sequence, ids)
        return sequence

    def _guesses(self, sequence: RunningRequest, ids: list[int]) -> Guesses:
        """Return the guesses of a request; raises PluginError if its drafter wants what the backend has not."""
        assert self._parts.drafter is not None
        tokens, vocab = self._parts.config.speculation.tokens, self._parts.model.config.vocab
        most = None if tokens == "auto" else tokens
        guesses = Guesses(self._parts.drafter(ids), most, vocab, partial(self._drafted, sequence))
        if guesses.sees:
            if not getattr(self._parts.executable, "has_hidden_states", False):
                backend = self._parts.config.backend.use
                why = f"it needs hidden states, and backend {backend} has none of this model"
                raise PluginError(f"drafter {self._parts.config.speculation.use}", why, "use backend native")
            self.drafters_see = True
        return guesses

    def _drafted(self, sequence: RunningRequest) -> DraftedRequest:
        """Return what a drafter may know about its request."""
        adapters = () if sequence.adapters is None else sequence.adapters.known() or ()
        acting = tuple((content, weight) for content, weight, _ in adapters)
        request = sequence.request
        if self._payoff is None:
            from infeng_core.scheduling.payoff import Payoff  # only drafters that ask for it need it

            self._payoff = Payoff(lambda: self._parts.in_flight.scheduler)
        return DraftedRequest(request.tenant, request.cache_salt, acting, self._payoff)


def abandon(streams: Sequence[Stream]) -> None:
    """Cancel streams that will not be read to their end."""
    for stream in streams:
        stream.cancel()
