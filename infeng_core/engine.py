"""The engine: one loop from requests to text."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any

from infeng_core import formats, kvcache
from infeng_core.adapters import AdapterCalls, Registry, base_names
from infeng_core.backend import Backend, BoundOp, Executable
from infeng_core.errors import InfengError, PluginError, UsageError
from infeng_core.intake import AdaptersOf, Intake, Prompt, Prompts
from infeng_core.plug.cpu import detect
from infeng_core.plug.manager import Plugins
from infeng_core.plug.manifest import EngineConfig, load_config
from infeng_core.plug.select import Selector
from infeng_core.request import Adapters, Completion, Request, SamplingParams
from infeng_core.sampler import Sampler, draw_seed
from infeng_core.scheduler import Batch, Scheduler
from infeng_core.scheduler import Sequence as Running
from infeng_core.sizing import adapters_budget, limits_of
from infeng_core.speculate import Guesses, parse
from infeng_core.stream import Event, Output, StopStrings, Stream, Streams, taken
from infeng_core.telemetry import Profile, measuring
from infeng_core.tokenizer import Tokenizer
from infeng_core.turns import Turns

_STAGES: Mapping[str, Mapping[str, str] | str] = {
    "_intake": {"take": "tokenize"},
    "_scheduler": {"next_batch": "schedule", "commit": "schedule"},
    "executable": {"run": "run"},
    "_sampler": {"pick": "sample"},
    "_streams": {"push": "detokenize"},
    "step": "step",
}
"""What a profile times: methods of the engine's parts, and of the engine."""


class Engine(AdapterCalls):
    """A model, loaded and ready to answer requests; several may live in one process.

    ``generate`` and ``stream`` run the engine themselves, on the thread that calls them. All methods may be called from
    several threads: one of them runs a step for everybody while the others sleep. Nobody waits for a step to submit or
    to cancel. Use it as a context manager, or call
    ``close``.
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
        self.config = config or load_config(manifest, overrides={**given, **parse(speculate), **overrides})
        reference = str(model) if model is not None else self.config.model.path
        if not reference:
            raise UsageError("model", "none is named", "give a directory or a hub name, or set model.path")
        self.cpu = detect()
        self.plugins = Plugins.discover(self.config, self.cpu)
        backend: Backend = self.plugins.backend(self.config.backend.use)
        self.selector = Selector(self.plugins, self.config, self.cpu) if backend.uses_kernels else None
        self.model = formats.load(reference, self.config, self.plugins)
        self.limits, bound = limits_of(self.config, self.model.config, backend)
        self.executable: Executable = backend.compile(self.model, self.config, self.limits, self.selector)
        if self.selector is not None:
            self.selector.close()  # everything is bound: no library will be tried again
        guessing = self.config.speculation.use
        self._drafter = None if guessing == "none" else self.plugins.drafter(guessing)
        self.tokenizer: Tokenizer = self.plugins.tokenizer(self.config.tokenizer.use)(
            self.model.tokenizer_dir, self.config
        )
        self._pool = kvcache.BlockPool(self.limits.kv_blocks)
        self._scheduler: Scheduler = self.plugins.scheduler(self.config.scheduler.use)(self.limits, self._pool)
        self._sampler = Sampler(self.limits.max_samples)
        self._streams = Streams()
        self._eos_ids = self._end_tokens()
        shape = self.model.config
        self._intake = Intake(
            self.tokenizer, vocab=shape.vocab, bos_id=shape.bos_id, context=self.limits.context, bound=bound
        )
        self._ids = itertools.count()
        self._turns = Turns()
        self._arrived: deque[Output] = deque()
        self._cancelled: deque[Running] = deque()
        self._is_open = True
        self._adapters = Registry(
            partial(formats.load_adapter, model=self.model, dtype=self.config.adapters.dtype),
            self.executable.load_adapter,
            most=self.config.adapters.max_resident,
            budget=adapters_budget(self.config.adapters, backend.available_bytes(), self.executable.kv_bytes),
            base=base_names(reference),
            max_stacked_rank=self.executable.max_stacked_rank,
        )
        try:
            for name, path in {**self.config.adapters.paths, **adapters}.items():
                self.load_adapter(name, path)
            for name in self.config.adapters.warm:
                self._adapters.pin(name)
        except BaseException:
            self.close()
            raise

    # -------------------------------------------------------------------------------------------------- the loop ---

    def step(self) -> bool:
        """Run one batch, or where all requests wait for adapters, sleep until there is news of one.

        Returns whether there was anything to do. Raises KernelError if an operation fails; the requests stay as they
        were before the step.
        """
        with self._turns:
            self._check_open()
            mark = self._adapters.changes
            self._settle()
            batch = self._scheduler.next_batch()
            if batch is None:
                return self._scheduler.waiting > 0 and self._adapters.wait(mark)
            self._check(batch)
            logits = self.executable.run(batch)
            tokens = self._sampler.pick(logits, batch)
            finished = self._streams.push(batch, tokens)
            self._scheduler.commit(batch, tokens, finished)
            self._settle()
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
        self, prompt: Prompt, params: SamplingParams | None = None, *, adapter: Adapters | None = None
    ) -> Stream:
        """Add one request to those in flight and return its stream; it moves on whenever anybody runs the engine."""
        [prepared] = self._prepare([Request.of(prompt, params, adapter)], None, None)
        return self._start(*prepared)

    def cancel(self, stream: Stream) -> None:
        """End a request soon; its last event then says ``cancelled``. Any thread may call this."""
        stream.cancel()

    @property
    def scheduler(self) -> Scheduler:
        """The scheduler in use, for one that a plugin steers from outside."""
        return self._scheduler

    def bound(self) -> Sequence[BoundOp]:
        """Return which kernel serves each operation, for which batch sizes, and why."""
        return self.executable.bound()

    def interrupt(self) -> None:
        """Make a step that runs on another thread stop between two tiles; it raises KernelError there."""
        self.executable.cancel()
        self._adapters.interrupt()

    def profile(self, *, events: int = 65536) -> AbstractContextManager[Profile]:
        """Measure what the engine does inside of a ``with`` block: ``with engine.profile() as profile: ...``.

        Afterwards ``profile.table()`` is a text, ``profile.write_trace(path)`` writes a trace for Perfetto. It costs
        about 0.2 us for each op of a step, and nothing outside of the block. Steps of other threads are measured too.
        events: of each thread, the latest that are kept for the trace.

        Raises UsageError where a profile is being taken already.
        """
        self._check_open()
        return measuring(self, _STAGES, self.executable, self._turns, events)

    def tokenize(self, text: str) -> list[int]:
        """Return the ids that ``text`` becomes as a prompt."""
        return self.tokenizer.encode([text])[0]

    # ---------------------------------------------------------------------------------------------------- ending ---

    def close(self) -> None:
        """End what is in flight as cancelled and give memory and threads back; calling it again does nothing."""
        with self._turns:
            if not self._is_open:
                return
            self._settle()
            self._is_open = False
            for sequence in self._streams.open_sequences():
                self._scheduler.drop(sequence)
                self._streams.cancel(sequence)
            self._adapters.close()
            self.executable.close()

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

    def _check_open(self) -> None:
        if not self._is_open:
            raise UsageError("engine", "it is closed", "make a new one")

    def _check(self, batch: Batch) -> None:
        """Raise PluginError where a scheduler knows nothing of adapters: the base would answer in their stead."""
        if not batch.adapters and any(segment.sequence.lease is not None for segment in batch.segments):
            name = self.config.scheduler.use
            raise PluginError(f"scheduler {name}", "it runs requests without their adapters", "use fcfs")

    def _end_tokens(self) -> tuple[int, ...]:
        """Return the tokens that end a text: the model's, or where it names none, the tokenizer's."""
        if self.model.config.eos_ids:
            return self.model.config.eos_ids
        return () if self.tokenizer.eos_id is None else (self.tokenizer.eos_id,)

    def _prepare(self, prompts: Any, params: SamplingParams | None, adapters: Any) -> list[tuple[Request, list[int]]]:
        self._check_open()
        prepared = self._intake.take(prompts, params, adapters)
        for request, _ in prepared:
            if request.adapter is not None:
                self._adapters.check(request.adapter)
        return prepared

    def _start_all(
        self, prepared: list[tuple[Request, list[int]]], events: deque[Event | Exception] | None = None
    ) -> list[Stream]:
        streams: list[Stream] = []
        try:
            for index, (request, ids) in enumerate(prepared):
                streams.append(self._start(request, ids, index, events))
        except BaseException:
            self._abandon(streams)
            raise
        return streams

    def _start(
        self, request: Request, ids: list[int], index: int = 0, events: deque[Event | Exception] | None = None
    ) -> Stream:
        params = request.params
        capacity = min(len(ids) + params.max_tokens, self.limits.context)
        seed = draw_seed() if params.seed is None else params.seed
        sequence = Running.start(next(self._ids), request, ids, capacity, seed)
        sequence.guesses = self._guesses(ids)
        ends = {*params.stop_token_ids, *(() if params.ignore_eos else self._eos_ids)}
        output = Output(sequence, self.tokenizer.detokenizer(ids), StopStrings(params.stop), frozenset(ends), index)
        if events is not None:
            output.events = events  # those of one call come in the order of their steps
        if request.adapter is not None:
            sequence.lease = self._adapters.lease(request.adapter)
            sequence.lease.owner = sequence
        self._arrived.append(output)
        self._adapters.ring()
        return Stream(output, self._run_until, self._cancel)

    def _events(self, prepared: list[tuple[Request, list[int]]]) -> Iterator[Event]:
        events: deque[Event | Exception] = deque()
        streams = self._start_all(prepared, events)
        unfinished = len(streams)
        try:
            while unfinished:
                self._run_until(lambda: bool(events))
                event = taken(events)
                unfinished -= event.completion is not None
                yield event
        finally:
            self._abandon(streams)

    def _run_until(self, is_done: Callable[[], bool]) -> None:
        """Run steps until ``is_done``; steps that other threads run in between count as well."""

        def work() -> None:
            if not self.step() and not is_done():
                name = self.config.scheduler.use
                raise PluginError(f"scheduler {name}", "requests wait, and it has no batch", "use fcfs")

        self._turns.run_until(is_done, work)

    def _cancel(self, sequence: Running) -> None:
        self._cancelled.append(sequence)
        self._adapters.ring()
        self._turns.attempt(self._settle)  # otherwise the thread that runs a step sees to it

    def _settle(self) -> None:
        """Take in what has arrived since the last step, and let go of what was cancelled or cannot be served."""
        while self._arrived:
            output = self._arrived.popleft()
            sequence = output.sequence
            self._streams.open(output)
            try:
                if sequence.lease is not None and sequence.lease.error is not None:
                    raise sequence.lease.error
                self._scheduler.add(sequence)
            except InfengError as error:
                self._end(sequence, error)
        while self._adapters.failed:
            lease = self._adapters.failed.popleft()
            sequence = lease.owner
            if sequence is not None and lease.error is not None:  # else it is seen to above, or has ended
                self._scheduler.drop(sequence)
                self._end(sequence, lease.error)
        while self._cancelled:
            sequence = self._cancelled.popleft()
            self._scheduler.drop(sequence)
            self._streams.cancel(sequence)

    def _end(self, sequence: Running, error: InfengError) -> None:
        self._streams.fail(sequence, error)
        if sequence.lease is not None:
            sequence.lease.close()

    def _abandon(self, streams: Sequence[Stream]) -> None:
        for stream in streams:
            stream.cancel()
