"""The engine: one loop from requests to text."""

from __future__ import annotations

import itertools
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import perf_counter
from types import MappingProxyType, TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from infeng_core import formats
from infeng_core.adapters import NamedAdapters, Registry, base_names
from infeng_core.backends.interface import Backend, BoundOp, Executable, InterruptedStepError, NotFiniteError
from infeng_core.backends.isolation import culprits
from infeng_core.backends.saved_prefixes import SavedPrefixes
from infeng_core.engine_thread import EngineThread
from infeng_core.errors import UsageError
from infeng_core.in_flight import InFlight
from infeng_core.kernels.choice import Selector
from infeng_core.machine.cpu import detect
from infeng_core.plug.assembly import load_config
from infeng_core.plug.manager import Plugins
from infeng_core.requests.chain import Chains
from infeng_core.requests.defaults import recommended
from infeng_core.requests.input import AdaptersOf, InputProcessor, Prompt, Prompts
from infeng_core.requests.output import Event, Output
from infeng_core.requests.pooling import Pooled, Pooling
from infeng_core.requests.processors import Vocabulary
from infeng_core.requests.request import Adapters, Completion, Logprob, Request, SamplingParams
from infeng_core.requests.sampler import Sampler, draw_seed
from infeng_core.requests.stream import Reader, Stream
from infeng_core.requests.tokenizer import Tokenizer
from infeng_core.scheduling.drafts import Guesses, parse
from infeng_core.scheduling.limits import adapters_budget, limits_of
from infeng_core.scheduling.scheduler import Scheduler
from infeng_core.scheduling.schedulers import Load, Schedulers
from infeng_core.settings.config import EngineConfig
from infeng_core.step import Batch
from infeng_core.step import Sequence as Running
from infeng_core.step_lock import StepLock
from infeng_core.telemetry import Laps, Profile, measuring

_STAGES: Mapping[str, Mapping[str, str] | str] = {
    "_inputs": {"take": "tokenize"},
    "_in_flight.scheduler": {"next_batch": "schedule", "commit": "schedule"},
    "executable": {"run": "run"},
    "_sampler": {"pick": "sample"},
    "_in_flight.streams": {"push": "detokenize"},
    "_step": "step",
}
"""What a profile times: methods of the engine's parts, and of the engine."""

_ONE_TOKEN = SamplingParams(temperature=0.0, max_tokens=1)
"""Of a request that is there for its prompt."""

CHARACTERS_PER_TOKEN = 8
"""A text has more tokens than one for so many characters; by it some are refused before they are tokenized."""


class Engine:
    """A model, loaded and ready to answer requests; several may live in one process.

    ``generate`` and ``stream`` run the engine themselves, on the thread that calls them. All methods may be called from
    several threads: one of them runs a step for everybody while the others sleep. Nobody waits for a step to submit or
    to cancel. Use it as a context manager, or call ``close``.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        manifest: str | Path | None = None,
        threads: int | None = None,
        format: str | None = None,
        speculate: str | None = None,
        adapters: Mapping[str, str | Path] = MappingProxyType({}),
        overrides: Mapping[str, object] = MappingProxyType({}),
        config: EngineConfig | None = None,
    ) -> None:
        """Load a model and bind a kernel to each of its operations.

        model: a Hugging Face directory, an engine-native directory or a hub name; default: ``model.path``.
        manifest: an engine manifest, or the name of a shipped one.
        threads, format: ``threads.count`` and ``model.format`` of the manifest.
        speculate: "ngram" or "ngram:K": guess up to K tokens ahead (``speculation.use``, ``speculation.tokens``).
        adapters: names to PEFT directories, artifacts or hub names, loaded when first asked for.
        overrides: settings by their dotted names, such as ``{"kv_cache.dtype": "f32"}``.
        config: a configuration that is complete already, instead of those above.

        Raises ManifestError, ModelError, AdapterError, PluginError, KernelError or ResourceError; each says what to do.
        """
        given = {"model.path": None if model is None else str(model), "threads.count": threads, "model.format": format}
        given = {key: value for key, value in given.items() if value is not None}
        laps = self._laps = Laps()
        self.config = config or load_config(manifest, overrides={**given, **parse(speculate), **overrides})
        reference = str(model) if model is not None else self.config.model.path
        if not reference:
            raise UsageError("model", "none is named", "give a directory or a hub name, or set model.path")
        self.cpu = detect()
        self.plugins = Plugins.discover(self.config, self.cpu)
        backend: Backend = self.plugins.backend(self.config.backend.use)
        laps.end("plugins")
        self.selector = Selector(self.plugins, self.config, self.cpu) if backend.uses_kernels else None
        laps.end("kernels")
        self.model = formats.load(reference, self.config, self.plugins)
        laps.end("weights", {"convert": self.model.conversion_seconds})
        self.defaults: Mapping[str, Any] = recommended(self.model.tokenizer_dir)
        """Sampling parameters that the model's generation_config.json sets, for who asks on behalf of others; requests
        take SamplingParams' own defaults."""
        self.limits, bound = limits_of(self.config, self.model.config, backend)
        self.executable: Executable = backend.compile(self.model, self.config, self.limits, self.selector)
        if self.selector is not None:
            self.selector.close()  # everything is bound: no library will be tried again
        laps.end("program", {} if self.selector is None else {"kernels": self.selector.seconds})
        guessing = self.config.speculation.use
        self._drafter = None if guessing == "none" else self.plugins.drafter(guessing)
        self.tokenizer: Tokenizer = self.plugins.tokenizer(self.config.tokenizer.use)(
            self.model.tokenizer_dir, self.config
        )
        laps.end("tokenizer")
        self._sampler = Sampler(self.limits.max_samples, self.config.sampling.order)
        self._eos_ids = self._end_tokens()
        shape = self.model.config
        self._inputs = InputProcessor(
            self.tokenizer, vocab=shape.vocab, bos_id=shape.bos_id, context=self.limits.context, bound=bound
        )
        vocabulary = Vocabulary(self.tokenizer, shape.vocab, self._eos_ids, self.model.tokenizer_dir)
        self._processors = Chains(self.plugins.logit_processor, vocabulary)
        self._ids = itertools.count()
        self._embeds: set[object] = set()  # calls of embed() that run
        self._lock = StepLock()
        self._background: EngineThread | None = None
        self._is_open = True
        self._is_released = False
        self._is_interrupted = False
        self._batch: Batch | None = None  # while it runs
        self._process = os.getpid()
        self._registry = Registry(
            partial(
                formats.load_adapter,
                model=self.model,
                dtype=self.config.adapters.dtype,
                cache=0 if self.config.adapters.cache == "none" else self.config.adapters.cache,
            ),
            self.executable.load_adapter,
            most=self.config.adapters.max_resident,
            budget=adapters_budget(self.config.adapters, backend.available_bytes(), self.executable.kv_bytes),
            base=base_names(reference),
            max_stacked_rank=self.executable.max_stacked_rank,
            load_timeout=self.config.adapters.load_timeout,
        )
        self.adapters = NamedAdapters(self._registry, self._check_open)
        self._saved = self._open_saved()
        policy = self.plugins.scheduler(self.config.scheduler.use)
        self._schedulers = Schedulers(
            self.config, self.limits, policy, self.model.id, self._saved.restore if self._saved is not None else None
        )
        self._in_flight = InFlight(
            self._schedulers.make, self.config.scheduler.use, self._registry, self._schedulers.backlog
        )
        try:
            for name, path in {**self.config.adapters.paths, **adapters}.items():
                self.adapters.load(name, path)
            laps.end("requests")
            for name in self.config.adapters.warm:
                self.adapters.pin(name)
            laps.end("adapters")
        except BaseException:
            self.close()
            raise

    # -------------------------------------------------------------------------------------------------- the loop ---

    def step(self) -> bool:
        """Run one batch, or where all requests wait for adapters, sleep until there is news of one.

        Returns whether there was anything to do. Raises KernelError if an operation fails; the requests stay as they
        were before the step.
        """
        self._check_open()
        if self._background is not None:
            raise UsageError("engine", "its own thread runs the steps", "wait for streams, or call stop() first")
        return self._lock.run(lambda: self._step())  # which a profile replaces

    def start(self, on_step: Callable[[], object] | None = None) -> None:
        """Let a thread of the engine's own run the steps until ``stop`` or ``close``, and sleep when nobody wants one.

        Whoever waits for a stream then sleeps; ``async for`` works on streams. on_step: called on that thread after
        every step, to look at streams (``pending``) and to submit or cancel; it must not wait. A step that fails ends
        what is in flight with its error. Raises UsageError where it runs already.
        """
        self._check_open()
        if self._background is not None:
            raise UsageError("engine", "it was started already", "call stop() first")
        self._background = EngineThread(
            lambda: self._lock.run(self._advance),
            on_step,
            lambda error: self._lock.run(partial(self._in_flight.fail_all, error)),
        )
        self._background.start()

    def stop(self) -> None:
        """End the thread of ``start`` after its step; requests in flight stay. Without one this does nothing."""
        if self._background is not None:
            if not self._is_forked:
                self._background.stop()
            self._background = None

    def _advance(self) -> bool:
        """Run a step; returns whether there was anything to do, raises PluginError where requests wait in vain."""
        has_run = self._step()
        if not has_run and self._saved is not None and self._saved.save(self._in_flight.scheduler.prefixes.tree):
            return True  # there may be more, and there may be requests
        if not has_run and self._in_flight.streams.outputs():
            raise self._in_flight.scheduler_error("requests wait, and it has no batch")
        return has_run

    def _step(self) -> bool:
        self._check_open()
        mark = self._registry.changes
        batch = self._in_flight.next_batch()
        if batch is None:
            scheduler = self._in_flight.scheduler
            return scheduler.waiting > 0 and self._registry.wait(mark, scheduler.next_deadline - perf_counter())
        if self._embeds:
            batch = batch._replace(hidden=any(segment.sequence.pooling is not None for segment in batch.segments))
        self._batch, self._is_interrupted = batch, False
        try:
            self._sampler.begin(batch)
            logits = self.executable.run(batch)
            if batch.hidden:
                _pool(batch, self.executable.hidden_states())  # type: ignore[attr-defined]  # of HiddenStates
        except NotFiniteError:
            found = culprits(self.executable.run, batch)
            if not found:
                raise
            self._in_flight.end_not_finite(found)
            return True
        except InterruptedStepError:
            if self._is_interrupted:
                raise
            return True  # for its requests were cancelled
        finally:
            self._batch = None
        tokens = self._sampler.pick(logits, batch)
        self._in_flight.record(batch, tokens, logits)
        return True

    # ------------------------------------------------------------------------------------------------- requests ---

    def generate(
        self,
        prompts: Prompts,
        params: SamplingParams | None = None,
        *,
        adapters: AdaptersOf = None,
    ) -> list[Completion]:
        """Answer prompts, as many at a time as fit, and return the completions in their order.

        prompts: one or several; a list of integers is one prompt of token ids.
        params, adapters: for every prompt that is not a Request. Adapters are names, or ``((name, weight), ...)`` that
        combine; a list has one for each prompt, None is the base model.

        Raises RequestError, before anything runs, for a prompt that cannot be served, and AdapterError or ResourceError
        for one whose adapter cannot be loaded.
        """
        streams = self._start_all(self._prepare(prompts, params, adapters))
        try:
            return [stream.result() for stream in streams]
        except BaseException:
            self._abandon(streams)
            raise

    def stream(
        self,
        prompts: Prompts,
        params: SamplingParams | None = None,
        *,
        adapters: AdaptersOf = None,
    ) -> Iterator[Event]:
        """Answer prompts as ``generate`` does, and return their events as they come; ``Event.index`` says whose.

        Each prompt's last event has its ``completion``. Closing the iterator early cancels what is unfinished.
        """
        return self._events(self._prepare(prompts, params, adapters))

    def submit(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        adapter: Adapters | None = None,
        index: int = 0,
        ready: deque[Output] | None = None,
    ) -> Stream:
        """Add one request to those in flight and return its stream; it moves on whenever anybody runs the engine.

        ready: gets an ``Output`` of this ``index`` for each event, on the thread that runs the step: ``on_step`` then
        need not look at every stream. Who takes events from it (``next_event``) takes them from the stream.

        Raises OverloadedError where too many wait already (``scheduler.max_waiting`` and others), before the prompt is
        tokenized, if its length says as much.
        """
        request = Request.of(prompt, params, adapter)
        self.check_room(len(request.prompt) // (CHARACTERS_PER_TOKEN if isinstance(request.prompt, str) else 1))
        [(request, ids)] = self._prepare([request], None, None)
        self.check_room(len(ids))
        return self._start(request, ids, index, ready)

    def check_room(self, tokens: int = 0, *, coming: int = 0) -> None:
        """Raise the OverloadedError that a request whose prompt has so many tokens would meet; costs microseconds.

        coming: requests that the caller has let in before and not submitted yet: they will wait as well.
        """
        self._check_open()
        self._schedulers.backlog.check(tokens, coming)

    def score(
        self, prompt: Prompt, continuation: str | Iterable[int], *, adapter: Adapters | None = None
    ) -> tuple[Logprob, ...]:
        """Return the log-probabilities of a continuation's tokens, each after the prompt and those before it.

        Two texts are tokenized as one; where the end of the prompt then becomes another token, that one counts to the
        continuation. The sum of ``logprob`` is the log-probability of the whole. Raises RequestError as ``generate``.
        """
        self._check_open()
        request, begin = self._inputs.joined(prompt, continuation, adapter)
        [(request, ids)] = self._prepare([request], None, None)
        found = self._start(request, ids, report_from=begin - 1).result().prompt_logprobs
        return tuple(one for one in found[begin:] if one is not None)

    def embed(
        self,
        prompts: Prompts,
        *,
        pooling: Pooling = "mean",
        adapters: AdaptersOf = None,
        normalize: bool = True,
        started: Callable[[Stream], object] | None = None,
    ) -> list[NDArray[np.float32]]:
        """Return a vector for each prompt, (hidden,) float32: of what the model's head reads of its tokens.

        prompts, adapters: as of ``generate``. pooling: "mean" of all tokens, "last" takes the last alone.
        normalize: to length 1. A vector does not depend on its batch or on how the prompt was cut into steps.
        started: gets the stream of each request as it starts, whose ``cancel`` ends it from any thread.

        Raises RequestError as ``generate``, EndedError for a request that was cancelled or ended by its timeout,
        UsageError where the backend or the model has no such states.
        """
        self._check_open()
        if not getattr(self.executable, "has_hidden_states", False):
            why = "it gives no hidden states of this model"
            raise UsageError(f"backend {self.config.backend.use}", why, "use backend native")
        prepared = self._prepare(prompts, None, adapters)
        pooled = [Pooled(pooling, len(ids)) for _, ids in prepared]
        streams: list[Stream] = []
        self._embeds.add(call := object())
        try:
            for (request, ids), states in zip(prepared, pooled, strict=True):
                streams.append(self._start(replace(request, params=_ONE_TOKEN), ids, pooling=states))
                if started is not None:
                    started(streams[-1])
            for stream in streams:
                stream.result()
        except BaseException:
            self._abandon(streams)
            raise
        finally:
            self._embeds.discard(call)
        return [states.result(normalize) for states in pooled]

    def cancel(self, stream: Stream) -> None:
        """End a request soon; its last event then says ``cancelled``. Any thread may call this, at any time.

        Its rows are in no further step; a step that runs for nobody else stops between two tiles.
        """
        stream.cancel()

    @property
    def startup(self) -> Mapping[str, float]:
        """Seconds that each phase of making this engine took, in their order; they add up to the whole."""
        return self._laps.seconds

    @property
    def scheduler(self) -> Scheduler:
        """The scheduler in use: what waits and what runs, its policy, its cache of prefixes."""
        return self._in_flight.scheduler

    def load(self) -> Load:
        """Return what there is to do, and counts since the engine was made; any thread may ask, during a step too."""
        return self._schedulers.load()

    def bound(self) -> Sequence[BoundOp]:
        """Return which kernel serves each operation, for which batch sizes, and why."""
        self._check_open()
        return self.executable.bound()

    def interrupt(self) -> None:
        """Make a step that runs on another thread stop between two tiles; it raises KernelError there."""
        if self._is_open:
            self._is_interrupted = True
            self.executable.cancel()
            self._registry.interrupt()

    def profile(self, *, events: int = 65536) -> AbstractContextManager[Profile]:
        """Measure what the engine does inside of a ``with`` block: ``with engine.profile() as profile: ...``.

        Afterwards ``profile.table()`` is a text, ``profile.write_trace(path)`` writes a trace for Perfetto. It costs
        about 0.2 us for each op of a step, and nothing outside of the block. Steps of other threads are measured too.
        events: of each thread, the latest that are kept for the trace.

        Raises UsageError where a profile is being taken already.
        """
        self._check_open()
        return measuring(self, _STAGES, self.executable, self._lock.run, events)

    def tokenize(self, text: str) -> list[int]:
        """Return the ids that ``text`` becomes as a prompt."""
        self._check_open()
        return self.tokenizer.encode([text])[0]

    # ---------------------------------------------------------------------------------------------------- ending ---

    def close(self) -> None:
        """End what is in flight as cancelled and give memory and threads back; calling it again does nothing.

        After close everything else raises UsageError, but for cancelling and interrupting, of which nothing is left.
        """
        if self._is_forked:
            self._is_open = False  # nothing here is this process's own
            return
        if self._background is not None:
            self._background.halt()
        self._lock.run(self._close)
        self.stop()

    def _close(self) -> None:
        """Each part can be done again, after an interrupt in the middle. Who waits sees his request's end first."""
        if self._is_released:
            return
        self._in_flight.close()
        self._is_open = False
        if self._saved is not None:
            self._saved.save(self._in_flight.scheduler.prefixes.tree, most=None)
            self._saved.close()
        self._registry.close()
        self._sampler.close()
        self.executable.close()
        self._is_released = True

    def __enter__(self) -> Engine:
        """Return the engine."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the engine."""
        self.close()

    # -------------------------------------------------------------------------------------------------- internals ---

    def _guesses(self, ids: list[int]) -> Guesses | None:
        if self._drafter is None:
            return None
        return Guesses(self._drafter(ids), self.config.speculation.tokens, self.model.config.vocab)

    @property
    def _is_forked(self) -> bool:
        return os.getpid() != self._process

    def _check_open(self) -> None:
        if not self._is_open:
            raise UsageError("engine", "it is closed", "make a new one")
        self._check_process()

    def _check_process(self) -> None:
        if self._is_forked:
            why = f"it belongs to process {self._process}, and its threads did not come along into this fork of it"
            raise UsageError("engine", why, "make one here, or start processes by spawn")

    def _open_saved(self) -> SavedPrefixes | None:
        cache = self.config.kv_cache
        if cache.prefix_dir is None or not cache.prefix:
            return None
        return SavedPrefixes(Path(cache.prefix_dir), cache.prefix_disk, self.executable, self.model.id)

    def _end_tokens(self) -> tuple[int, ...]:
        """Return the tokens that end a text: the model's, or where it names none, the tokenizer's."""
        if self.model.config.eos_ids:
            return self.model.config.eos_ids
        return () if self.tokenizer.eos_id is None else (self.tokenizer.eos_id,)

    def _prepare(self, prompts: Any, params: SamplingParams | None, adapters: Any) -> list[tuple[Request, list[int]]]:
        self._check_open()
        prepared = self._inputs.take(prompts, params, adapters)
        for request, _ in prepared:
            if request.adapter is not None:
                self._registry.check(request.adapter)
        return prepared

    def _start_all(self, prepared: list[tuple[Request, list[int]]], ready: deque[Output] | None = None) -> list[Stream]:
        streams: list[Stream] = []
        try:
            for index, (request, ids) in enumerate(prepared):
                streams.append(self._start(request, ids, index, ready))
        except BaseException:
            self._abandon(streams)
            raise
        return streams

    def _start(
        self,
        request: Request,
        ids: list[int],
        index: int = 0,
        ready: deque[Output] | None = None,
        report_from: int | None = None,
        pooling: Pooled | None = None,
    ) -> Stream:
        self._check_open()
        params = request.params
        capacity = min(len(ids) + params.max_tokens, self.limits.context)
        seed = draw_seed() if params.seed is None else params.seed
        sequence = Running.start(next(self._ids), request, ids, capacity, seed)
        sequence.arrived = perf_counter()
        if request.timeout is not None:
            sequence.deadline = sequence.arrived + request.timeout
        sequence.guesses = self._guesses(ids)
        sequence.report_from = 0 if params.prompt_logprobs is not None else report_from
        sequence.pooling = pooling
        ends = frozenset((*params.stop_token_ids, *(() if params.ignore_eos else self._eos_ids)))
        sequence.processors = self._processors.start(params, ids, ends)
        # A tokenizer that knows nothing of special tokens need not take the argument.
        spelled = {} if params.skip_special_tokens else {"skip_special_tokens": False}
        output = Output(sequence, partial(self.tokenizer.detokenizer, ids, **spelled), ends, index, ready)
        if request.adapter is not None:
            reference = self._registry.refer(request.adapter)
            reference.owner = output
            sequence.adapters = reference
        stream = Stream(output, self._run_until, self._cancel, self._arrival)
        Reader(stream, self._in_flight.commands.append, output)
        self._in_flight.submit(output)
        self._ring()
        return stream

    def _events(self, prepared: list[tuple[Request, list[int]]]) -> Iterator[Event]:
        ready: deque[Output] = deque()
        streams = self._start_all(prepared, ready)
        unfinished = len(streams)
        try:
            while unfinished:
                self._run_until(lambda: bool(ready))
                event = ready.popleft().next_event()
                if event is not None:
                    unfinished -= event.completion is not None
                    yield event
        finally:
            self._abandon(streams)

    def _run_until(self, is_done: Callable[[], bool]) -> None:
        """Run steps until ``is_done``; steps that other threads run in between count as well."""

        def work() -> None:
            if not self._step() and not is_done():
                raise self._in_flight.scheduler_error("requests wait, and it has no batch")

        while not is_done():
            self._check_process()  # whether it is closed is seen in a turn, after those that close it
            if (background := self._background) is not None:
                background.wait(is_done)
            else:
                self._lock.run_until(lambda: is_done() or self._background is not None, work)

    async def _arrival(self, is_done: Callable[[], bool]) -> None:
        while not is_done():
            self._check_open()
            if (background := self._background) is None:
                raise UsageError("engine", "no thread runs its steps", "call start() before `async for`")
            await background.arrival(is_done)

    def _ring(self) -> None:
        """Tell that there is a command."""
        self._registry.notify()
        if (background := self._background) is not None:
            background.notify()

    def _cancel(self, output: Output) -> None:
        if output.finished or not self._is_open or self._is_forked:
            return
        self._in_flight.cancel(output)
        self._ring()
        batch = self._batch
        if batch is not None and self._in_flight.streams.nobody_wants(batch):
            self.executable.cancel()  # should another step have begun meanwhile, it is run again
        if self._background is None:  # else that sees to it, or the thread that runs a step
            self._lock.attempt(self._in_flight.settle)

    def _abandon(self, streams: Sequence[Stream]) -> None:
        for stream in streams:
            stream.cancel()


def _pool(batch: Batch, hidden: NDArray[np.float32]) -> None:
    """Give the hidden states of a batch's rows, (rows, hidden), to those who want them."""
    for segment in batch.segments:
        if segment.sequence.pooling is not None:
            segment.sequence.pooling.take(segment.pos0, hidden[segment.row_begin : segment.row_end])
