"""The engine: one loop from requests to text."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any

from infeng_core import _native, formats, kvcache
from infeng_core.backend import Backend, BoundOp, Executable, Limits
from infeng_core.errors import PluginError, RequestError, UsageError
from infeng_core.formats.memory import available_bytes
from infeng_core.intake import Intake, Prompt, Prompts
from infeng_core.plug.cpu import detect
from infeng_core.plug.manager import Plugins
from infeng_core.plug.manifest import EngineConfig, load_config
from infeng_core.plug.select import Selector
from infeng_core.request import Completion, Request, SamplingParams
from infeng_core.sampler import Sampler, draw_seed
from infeng_core.scheduler import Scheduler
from infeng_core.scheduler import Sequence as Running
from infeng_core.speculate import MOST_ROWS, Guesses, Ngrams, parse
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


class Engine:
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
        overrides: Mapping[str, object] = MappingProxyType({}),
        config: EngineConfig | None = None,
    ) -> None:
        """Load a model and bind a kernel to each of its operations.

        model: a Hugging Face directory, an engine-native directory or a hub name; default: ``model.path``.
        manifest: an engine manifest, or the name of a shipped one.
        threads, format: ``threads.count`` and ``model.format`` of the manifest.
        speculate: "ngram" or "ngram:K": guess up to K tokens ahead (``speculation.use``, ``speculation.tokens``).
        overrides: settings by their dotted names, such as ``{"kv_cache.dtype": "f32"}``.
        config: a configuration that is complete already, instead of those above.

        Raises ManifestError, ModelError, PluginError, KernelError or ResourceError; each says what to do.
        """
        given = {"model.path": None if model is None else str(model), "threads.count": threads, "model.format": format}
        given = {key: value for key, value in given.items() if value is not None}
        self.config = config or load_config(manifest, overrides={**given, **parse(speculate), **overrides})
        reference = str(model) if model is not None else self.config.model.path
        if not reference:
            raise UsageError("model", "none is named", "give a directory or a hub name, or set model.path")
        self.cpu = detect()
        self.plugins = Plugins.discover(self.config, self.cpu)
        self.selector = Selector(self.plugins, self.config, self.cpu)
        self.model = formats.load(reference, self.config, self.plugins)
        self.limits = self._limits()
        backend: Backend = self.plugins.backend(self.config.backend.use)
        self.executable: Executable = backend.compile(self.model, self.config, self.limits, self.selector)
        self.selector.close()  # everything is bound: no library will be tried again
        self.tokenizer: Tokenizer = self.plugins.tokenizer(self.config.tokenizer.use)(
            self.model.tokenizer_dir, self.config
        )
        self._pool = kvcache.BlockPool(self.limits.kv_blocks)
        self._scheduler: Scheduler = self.plugins.scheduler(self.config.scheduler.use)(self.limits, self._pool)
        self._sampler = Sampler(self.limits.max_samples)
        self._streams = Streams()
        self._eos_ids = self._end_tokens()
        self._intake = self._make_intake()
        self._ids = itertools.count()
        self._turns = Turns()
        self._arrived: deque[Output] = deque()
        self._cancelled: deque[Running] = deque()
        self._is_open = True

    # -------------------------------------------------------------------------------------------------- the loop ---

    def step(self) -> bool:
        """Run one batch; return whether there was anything to do.

        Raises KernelError if an operation fails; the requests stay as they were before the step.
        """
        with self._turns:
            self._check_open()
            self._settle()
            batch = self._scheduler.next_batch()
            if batch is None:
                return False
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
    ) -> list[Completion]:
        """Answer prompts, as many at a time as fit, and return the completions in their order.

        prompts: one or several; a list of integers is one prompt of token ids.
        params: for every prompt that is not a Request.

        Raises RequestError, before anything runs, for a prompt that cannot be served.
        """
        streams = self._start_all(self._prepare(prompts, params))
        try:
            return [stream.result() for stream in streams]
        except BaseException:
            self._abandon(streams)
            raise

    def stream(
        self,
        prompts: Prompts,
        params: SamplingParams | None = None,
    ) -> Iterator[Event]:
        """Answer prompts as ``generate`` does, and return their events as they come; ``Event.index`` says whose.

        Each prompt's last event has its ``completion``. Closing the iterator early cancels what is unfinished.
        """
        return self._events(self._prepare(prompts, params))

    def submit(self, prompt: Prompt, params: SamplingParams | None = None) -> Stream:
        """Add one request to those in flight and return its stream; it moves on whenever anybody runs the engine."""
        [prepared] = self._prepare([Request.of(prompt, params)], None)
        return self._start(*prepared)

    def cancel(self, stream: Stream) -> None:
        """End a request soon; its last event then says ``cancelled``. Any thread may call this."""
        stream.cancel()

    def bound(self) -> Sequence[BoundOp]:
        """Return which kernel serves each operation, for which batch sizes, and why."""
        return self.executable.bound()

    def interrupt(self) -> None:
        """Make a step that runs on another thread stop between two tiles; it raises KernelError there."""
        self.executable.cancel()

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
                self._streams.cancel(sequence)
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

    def _limits(self) -> Limits:
        """Bound batches by the manifest, and the context by what the model knows and the cache holds."""
        scheduler, shape = self.config.scheduler, self.model.config
        running = min(scheduler.max_running, scheduler.max_batch_tokens)
        block_bytes = _native.KvCache.bytes_per_block(
            self.config.kv_cache.dtype, layers=shape.layers, kv_heads=shape.kv_heads, head_dim=shape.head_dim
        )
        cache = kvcache.size(
            self.config.kv_cache.memory,
            block_bytes=block_bytes,
            context=shape.max_positions,
            max_running=running,
            available_bytes=available_bytes(),
        )
        self._cache_reason = cache.reason
        return Limits(
            max_rows=scheduler.max_batch_tokens,
            max_samples=min(running + self._most_guesses(running), scheduler.max_batch_tokens),
            max_segments=running,
            context=min(shape.max_positions, cache.tokens),
            kv_blocks=cache.blocks,
        )

    def _most_guesses(self, running: int) -> int:
        """Return how many guessed rows a step may have."""
        speculation = self.config.speculation
        return 0 if speculation.use == "none" else min(running * speculation.tokens, MOST_ROWS)

    def _guesses(self, ids: list[int]) -> Guesses | None:
        speculation = self.config.speculation
        return None if speculation.use == "none" else Guesses(Ngrams(ids), speculation.tokens)

    def _make_intake(self) -> Intake:
        shape, context = self.model.config, self.limits.context
        bound = "the model's own" if context == shape.max_positions else self._cache_reason
        return Intake(self.tokenizer, vocab=shape.vocab, bos_id=shape.bos_id, context=context, bound=bound)

    def _check_open(self) -> None:
        if not self._is_open:
            raise UsageError("engine", "it is closed", "make a new one")

    def _end_tokens(self) -> tuple[int, ...]:
        """Return the tokens that end a text: the model's, or where it names none, the tokenizer's."""
        if self.model.config.eos_ids:
            return self.model.config.eos_ids
        return () if self.tokenizer.eos_id is None else (self.tokenizer.eos_id,)

    def _prepare(self, prompts: Any, params: SamplingParams | None) -> list[tuple[Request, list[int]]]:
        self._check_open()
        return self._intake.take(prompts, params)

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
        self._arrived.append(output)
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
        self._turns.attempt(self._settle)  # otherwise the thread that runs a step sees to it

    def _settle(self) -> None:
        """Take in what has arrived since the last step, and let go of what was cancelled."""
        while self._arrived:
            output = self._arrived.popleft()
            self._streams.open(output)
            try:
                self._scheduler.add(output.sequence)
            except RequestError as error:
                self._streams.fail(output.sequence, error)
        while self._cancelled:
            sequence = self._cancelled.popleft()
            self._scheduler.drop(sequence)
            self._streams.cancel(sequence)

    def _abandon(self, streams: Sequence[Stream]) -> None:
        for stream in streams:
            stream.cancel()
