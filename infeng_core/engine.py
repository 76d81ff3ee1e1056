"""The engine: one loop from requests to text."""

from __future__ import annotations

import itertools
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from infeng_core import formats
from infeng_core.adapters import AdapterInfo, Registry, base_names
from infeng_core.backends.interface import Backend, BoundOp, Executable, InterruptedStepError, NotFiniteError
from infeng_core.engine_thread import EngineThread
from infeng_core.errors import InfengError, PluginError, UsageError
from infeng_core.kernels.choice import Selector
from infeng_core.machine.cpu import detect
from infeng_core.plug.assembly import load_config
from infeng_core.plug.manager import Plugins
from infeng_core.requests.chain import Chains
from infeng_core.requests.input import AdaptersOf, InputProcessor, Prompt, Prompts
from infeng_core.requests.processors import Vocabulary
from infeng_core.requests.request import Adapters, Completion, Logprob, Request, SamplingParams
from infeng_core.requests.sampler import Sampler, draw_seed
from infeng_core.requests.stream import Event, Output, Reader, Stream, Streams, not_finite
from infeng_core.requests.tokenizer import Tokenizer
from infeng_core.scheduling.blocks import BlockPool
from infeng_core.scheduling.drafts import Guesses, parse
from infeng_core.scheduling.limits import adapters_budget, limits_of
from infeng_core.scheduling.scheduler import Scheduler
from infeng_core.settings.config import EngineConfig
from infeng_core.step import Batch, Segment, part
from infeng_core.step import Sequence as Running
from infeng_core.step_lock import StepLock
from infeng_core.telemetry import Profile, measuring

_STAGES: Mapping[str, Mapping[str, str] | str] = {
    "_inputs": {"take": "tokenize"},
    "_scheduler": {"next_batch": "schedule", "commit": "schedule"},
    "executable": {"run": "run"},
    "_sampler": {"pick": "sample"},
    "_streams": {"push": "detokenize"},
    "_step": "step",
}
"""What a profile times: methods of the engine's parts, and of the engine."""

_T = TypeVar("_T")

Command = tuple[Callable[[Output], None], Output]
"""What a step has to do first, with which request; a Reader that has gone says to cancel its request."""


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
        self._begin()
        self._sampler = Sampler(self.limits.max_samples)
        self._streams = Streams()
        self._eos_ids = self._end_tokens()
        shape = self.model.config
        self._inputs = InputProcessor(
            self.tokenizer, vocab=shape.vocab, bos_id=shape.bos_id, context=self.limits.context, bound=bound
        )
        vocabulary = Vocabulary(self.tokenizer, shape.vocab, self._eos_ids, self.model.tokenizer_dir)
        self._processors = Chains(self.plugins.logit_processor, vocabulary)
        self._ids = itertools.count()
        self._lock = StepLock()
        self._background: EngineThread | None = None
        self._commands: deque[Command | Reader] = deque()  # in the order of their arrival
        self._is_open = True
        self._is_released = False
        self._is_torn = False
        self._is_interrupted = False
        self._batch: Batch | None = None  # while it runs
        self._process = os.getpid()
        self._adapters = Registry(
            partial(formats.load_adapter, model=self.model, dtype=self.config.adapters.dtype),
            self.executable.load_adapter,
            most=self.config.adapters.max_resident,
            budget=adapters_budget(self.config.adapters, backend.available_bytes(), self.executable.kv_bytes),
            base=base_names(reference),
            max_stacked_rank=self.executable.max_stacked_rank,
            load_timeout=self.config.adapters.load_timeout,
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
        self._background = EngineThread(lambda: self._lock.run(self._advance), on_step, self._fail_all)
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
        if not has_run and self._streams.outputs():
            raise self._scheduler_error("requests wait, and it has no batch")
        return has_run

    def _fail_all(self, error: InfengError) -> None:
        def end() -> None:
            for output in self._streams.outputs():
                self._end(output, error)

        self._lock.run(lambda: self._orderly(end))

    def _step(self) -> bool:
        self._check_open()
        mark = self._adapters.changes
        batch = self._orderly(self._next_batch)
        if batch is None:
            return self._scheduler.waiting > 0 and self._adapters.wait(mark)
        self._batch, self._is_interrupted = batch, False
        try:
            self._sampler.begin(batch)
            logits = self.executable.run(batch)
        except NotFiniteError as error:
            self._orderly(partial(self._isolate, batch, error))
            return True
        except InterruptedStepError:
            if self._is_interrupted:
                raise
            return True  # for its requests were cancelled
        finally:
            self._batch = None
        tokens = self._sampler.pick(logits, batch)
        self._orderly(partial(self._record, batch, tokens, logits))
        return True

    def _next_batch(self) -> Batch | None:
        self._settle()
        batch = self._scheduler.next_batch()
        if batch is not None:
            self._check(batch)
        return batch

    def _record(self, batch: Batch, tokens: list[list[int]], logits: NDArray[np.float32]) -> None:
        finished = self._streams.push(batch, tokens, logits)
        self._scheduler.commit(batch, tokens, finished)
        self._streams.close(finished)
        self._check_progress(batch, finished)
        self._settle()

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

    def cancel(self, stream: Stream) -> None:
        """End a request soon; its last event then says ``cancelled``. Any thread may call this, at any time.

        Its rows are in no further step; a step that runs for nobody else stops between two tiles.
        """
        stream.cancel()

    @property
    def scheduler(self) -> Scheduler:
        """The scheduler in use, for one that a plugin steers from outside."""
        return self._scheduler

    def bound(self) -> Sequence[BoundOp]:
        """Return which kernel serves each operation, for which batch sizes, and why."""
        self._check_open()
        return self.executable.bound()

    def interrupt(self) -> None:
        """Make a step that runs on another thread stop between two tiles; it raises KernelError there."""
        if self._is_open:
            self._is_interrupted = True
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
        return measuring(self, _STAGES, self.executable, self._lock.run, events)

    def tokenize(self, text: str) -> list[int]:
        """Return the ids that ``text`` becomes as a prompt."""
        self._check_open()
        return self.tokenizer.encode([text])[0]

    # -------------------------------------------------------------------------------------------------- adapters ---

    def load_adapter(self, name: str, path: str | Path, *, scale: float = 1.0, pin: bool = False) -> None:
        """Give a PEFT directory, an artifact or a hub name a name that requests can use.

        It is read when it is first asked for, beside the running batch, and may leave the memory when others are asked
        for; pinned, it is read now and stays. scale multiplies its alpha / r.

        Raises AdapterError for a name that cannot be, is taken or is the base's, and for a path that is not there;
        pinned, also for an adapter that cannot be used, and ResourceError where there is no room.
        """
        self._check_open()
        self._adapters.add(name, path, scale=scale, pin=pin)

    def unload_adapter(self, name: str) -> None:
        """Forget a name; requests that have named it are served. Raises AdapterError where there is none."""
        self._check_open()
        self._adapters.remove(name)

    def pin_adapter(self, name: str, pinned: bool = True) -> None:
        """Load an adapter now if need be and keep it in memory, or let it leave again; raises as ``load_adapter``."""
        self._check_open()
        self._adapters.pin(name, pinned)

    def reload_adapter(self, name: str) -> None:
        """Read an adapter's files again; requests that run finish on what they started with.

        Where they cannot be used, the old ones stay and AdapterError or ResourceError is raised.
        """
        self._check_open()
        self._adapters.reload(name)

    def adapters(self) -> list[AdapterInfo]:
        """Return what is known of every adapter, in the order in which they were named."""
        self._check_open()
        return self._adapters.infos()

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
        was_torn, self._is_torn = self._is_torn, True
        outputs = [c.output if isinstance(c, Reader) else c[1] for c in self._commands]
        for output in (*self._streams.outputs(), *outputs):
            if was_torn:
                output.restore()
            output.cancel()
            self._let_go(output)
        self._is_open = False
        self._adapters.close()
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

    def _begin(self) -> None:
        """Start with a scheduler that knows no sequence."""
        self._pool = BlockPool(self.limits.kv_blocks)
        self._scheduler: Scheduler = self.plugins.scheduler(self.config.scheduler.use)(self.limits, self._pool)

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

    def _orderly(self, work: Callable[[], _T]) -> _T:
        """Call ``work``, which an exception such as KeyboardInterrupt may leave in the middle of anything."""
        if self._is_torn:
            self._restore()
        try:
            return work()
        except BaseException:
            self._is_torn = True
            raise

    def _restore(self) -> None:
        """Begin again with what callers have been given: another scheduler, which computes all of it again."""
        self._begin()
        for output in self._streams.outputs():
            sequence = output.sequence
            output.restore()
            if output.finished:
                self._let_go(output)
            else:
                sequence.restart(output.tokens)
                self._schedule(output)
        self._is_torn = False

    def _check(self, batch: Batch) -> None:
        """Raise PluginError where a scheduler knows nothing of adapters: the base would answer in their stead."""
        if not batch.adapters and any(segment.sequence.adapters is not None for segment in batch.segments):
            raise self._scheduler_error("it runs requests without their adapters")

    def _check_progress(self, batch: Batch, finished: list[Running]) -> None:
        """Raise PluginError where a scheduler would make the same batch for ever."""
        for segment in batch.segments:
            if segment.sequence.computed <= segment.pos0 and segment.sequence not in finished:
                raise self._scheduler_error("it does not record what was computed")

    def _scheduler_error(self, why: str) -> PluginError:
        return PluginError(f"scheduler {self.config.scheduler.use}", why, "use fcfs")

    def _isolate(self, batch: Batch, error: NotFiniteError) -> None:
        """End the requests whose rows make a step fail by themselves; raises ``error`` where there are none.

        They are found by halves: rows may run again, in any company.
        """

        def culprits(segments: list[Segment]) -> list[Running]:
            try:
                self.executable.run(part(batch, segments))
            except NotFiniteError:
                half = len(segments) // 2
                return culprits(segments[:half]) + culprits(segments[half:]) if half else [segments[0].sequence]
            return []

        found = culprits(batch.segments)
        if not found:
            raise error
        for sequence in found:
            self._end(self._streams.of(sequence), not_finite(sequence.request))

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
                self._adapters.check(request.adapter)
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
    ) -> Stream:
        self._check_open()
        params = request.params
        capacity = min(len(ids) + params.max_tokens, self.limits.context)
        seed = draw_seed() if params.seed is None else params.seed
        sequence = Running.start(next(self._ids), request, ids, capacity, seed)
        sequence.guesses = self._guesses(ids)
        sequence.report_from = 0 if params.prompt_logprobs is not None else report_from
        ends = frozenset((*params.stop_token_ids, *(() if params.ignore_eos else self._eos_ids)))
        sequence.processors = self._processors.start(params, ids, ends)
        output = Output(sequence, partial(self.tokenizer.detokenizer, ids), ends, index, ready)
        if request.adapter is not None:
            reference = self._adapters.refer(request.adapter)
            reference.owner = output
            sequence.adapters = reference
        stream = Stream(output, self._run_until, self._cancel, self._arrival)
        Reader(stream, self._commands.append, output)
        self._commands.append((self._take_in, output))
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
                raise self._scheduler_error("requests wait, and it has no batch")

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
        self._adapters.notify()
        if (background := self._background) is not None:
            background.notify()

    def _cancel(self, output: Output) -> None:
        if output.finished or not self._is_open or self._is_forked:
            return
        output.is_cancelled = True
        self._commands.append((self._drop, output))
        self._ring()
        batch = self._batch
        if batch is not None and self._streams.nobody_wants(batch):
            self.executable.cancel()  # should another step have begun meanwhile, it is run again
        if self._background is None:  # else that sees to it, or the thread that runs a step
            self._lock.attempt(lambda: self._orderly(self._settle))

    def _settle(self) -> None:
        """Obey what has arrived since the last step, in its order, and let go of what cannot be served.

        A command goes when it has been obeyed: after Ctrl-C in the middle it is obeyed again.
        """
        while self._commands:
            command = self._commands[0]
            if isinstance(command, Reader):
                self._drop(command.output)
            else:
                command[0](command[1])
            self._commands.popleft()
        while self._adapters.failed:
            reference = self._adapters.failed[0]
            if reference.owner is not None and reference.error is not None:  # else it has ended
                self._end(reference.owner, reference.error)
            self._adapters.failed.popleft()

    def _take_in(self, output: Output) -> None:
        if not output.finished and self._streams.open(output):
            self._schedule(output)

    def _schedule(self, output: Output) -> None:
        reference = output.sequence.adapters
        try:
            if reference is not None and reference.error is not None:
                raise reference.error
            self._scheduler.add(output.sequence)
        except InfengError as error:
            self._end(output, error)
        except Exception as error:
            self._end(output, self._scheduler_error(f"it does not take a request ({type(error).__name__}: {error})"))

    def _drop(self, output: Output) -> None:
        self._scheduler.drop(output.sequence)
        output.cancel()
        self._let_go(output)

    def _end(self, output: Output, error: InfengError) -> None:
        self._scheduler.drop(output.sequence)
        output.fail(error)
        self._let_go(output)

    def _let_go(self, output: Output) -> None:
        """Give back what a request holds that has ended."""
        if output.sequence.adapters is not None:
            output.sequence.adapters.close()
        self._streams.close([output.sequence])

    def _abandon(self, streams: Sequence[Stream]) -> None:
        for stream in streams:
            stream.cancel()
