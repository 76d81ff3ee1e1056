"""The engine: one loop from requests to text."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from infeng_core.adapters.named import NamedAdapters
from infeng_core.backends.interface import BoundOp, Executable
from infeng_core.engine import arguments
from infeng_core.engine.driver import Driver
from infeng_core.engine.embedding import Embeddings
from infeng_core.engine.execution import Execution
from infeng_core.engine.lifetime import Lifetime
from infeng_core.engine.submission import Submissions, abandon
from infeng_core.engine.watchdog import HELPED, STREAMS, Place, Stall, Watchdog
from infeng_core.errors import UsageError
from infeng_core.requests import checks
from infeng_core.requests.input import AdaptersOf, Prompt, Prompts
from infeng_core.requests.output import Event, Output
from infeng_core.requests.pooling import Pooling
from infeng_core.requests.request import Adapters, Completion, Logprob, SamplingParams
from infeng_core.requests.sampler import Sampler
from infeng_core.requests.stream import Stream
from infeng_core.scheduling.drafts import parse
from infeng_core.scheduling.scheduler import Scheduler
from infeng_core.scheduling.schedulers import Load
from infeng_core.settings.config import EngineConfig
from infeng_core.telemetry.observers import Observer
from infeng_core.telemetry.startup_times import StartupTimes

if TYPE_CHECKING:
    from infeng_core.plug.manager import Plugins
    from infeng_core.telemetry.profile import Profile


class Engine:
    """A model, loaded and ready to answer requests; several may live in one process.

    ``generate`` and ``stream`` run the engine themselves, on the thread that calls them. All methods may be called from
    several threads: one of them runs a step for all while the others sleep. No thread waits for a step to submit or
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
        plugins: Plugins | None = None,
    ) -> None:
        """Load a model and bind a kernel to each of its operations.

        model: a Hugging Face directory, an engine-native directory or a hub name; default: ``model.path``.
        manifest: an engine manifest, or the name of a shipped one.
        threads, format: ``threads.count`` and ``model.format`` of the manifest.
        speculate: "ngram" or "ngram:K": guess up to K tokens ahead (``speculation.use``, ``speculation.tokens``).
        adapters: names to PEFT directories, artifacts or hub names, loaded when first asked for.
        overrides: settings by their dotted names, such as ``{"kv_cache.dtype": "f32"}``.
        config: a configuration that is complete already, instead of those above.
        plugins: what ``Plugins.discover`` found for ``config``, so that they are not looked for again.

        Raises ManifestError, ModelError, AdapterError, PluginError, KernelError or ResourceError; each says what to do.
        """
        # The first engine loads what makes one: a program that only names the class does not wait for it.
        from infeng_core.engine.assembly import assemble
        from infeng_core.plug.assembly import load_config

        arguments.paths(model, manifest)
        arguments.mappings(adapters=adapters, overrides=overrides)
        arguments.configuration(config)
        arguments.plugins(plugins, config)
        arguments.speculation(speculate)
        given = {"model.path": None if model is None else str(model), "threads.count": threads, "model.format": format}
        given = {key: value for key, value in given.items() if value is not None}
        self._startup_times = StartupTimes()
        self.config = config or load_config(manifest, overrides={**given, **parse(speculate), **overrides})
        reference = str(model) if model is not None else self.config.model.path
        if not reference:
            raise UsageError("model", "none is named", "give a directory or a hub name, or set model.path")
        parts = assemble(reference, self.config, self._startup_times, plugins)
        self.cpu, self.plugins, self.selector = parts.cpu, parts.plugins, parts.selector
        self.model, self.limits, self.tokenizer = parts.model, parts.limits, parts.tokenizer
        self.executable: Executable = parts.executable
        self.defaults: Mapping[str, Any] = parts.defaults
        """Sampling parameters that the model's generation_config.json sets, for who asks on behalf of others; requests
        take SamplingParams' own defaults."""
        self._registry, self._saved, self._schedulers = parts.registry, parts.saved, parts.schedulers
        self._in_flight, self._observers = parts.in_flight, parts.observers
        self._lifetime = Lifetime()
        self._driver = Driver(self._observed_step, self._save_prefixes, self._in_flight, self._lifetime)
        self._submissions = Submissions(parts, self._driver, self._cancel, self._lifetime)
        self._embeddings = Embeddings(self._submissions)
        self._sampler = Sampler(self.limits.max_samples, self.config.sampling.order)
        self._execution = Execution(self._sampler, self._in_flight, self._observers)
        self._place = Place()
        sampler, seconds = self._sampler, self.config.scheduler.stall_ms / 1000
        self._watchdog = Watchdog(self._driver.moment, self._place, lambda: sampler.helper, seconds)
        self._parts = f"scheduler {self.config.scheduler.use}", f"backend {self.config.backend.use}"
        self.adapters = NamedAdapters(self._registry, self._lifetime.check)
        try:
            for name, path in {**self.config.adapters.paths, **adapters}.items():
                self.adapters.load(name, path)
            self._startup_times.record("requests")
            for name in self.config.adapters.warm:
                self.adapters.pin(name)
            self._startup_times.record("adapters")
            if seconds:
                self._watchdog.start()
        except BaseException:
            self.close()
            raise

    # -------------------------------------------------------------------------------------------------- the loop ---

    def step(self) -> bool:
        """Run one batch, or where all requests wait for adapters, sleep until there is news of one.

        Returns whether there was anything to do. Raises KernelError if an operation fails; the requests stay as they
        were before the step.
        """
        self._lifetime.check()
        if self._driver.is_started:
            raise UsageError("engine", "its own thread runs the steps", "wait for streams, or call stop() first")
        return self._driver.lock.run(self._observed_step)

    def _observed_step(self) -> bool:
        observers = self._observers
        return observers.timed("step", self._step) if observers.present else self._step()

    def _step(self) -> bool:
        """Requests -> scheduling -> backend -> requests; called in turns of the driver's lock."""
        self._lifetime.check()
        place, (scheduler, backend) = self._place, self._parts
        place.part = scheduler
        batch = self._in_flight.next_batch()
        if batch is None:
            place.part = None
            return self._in_flight.wait()
        place.part = backend
        logits = self._execution.run(self._embeddings.marked(batch), self.executable)
        if logits is not None:
            place.part = HELPED
            observers, pick = self._observers, self._sampler.pick
            tokens = observers.timed("sample", pick, logits, batch) if observers.present else pick(logits, batch)
            place.part = STREAMS
            self._in_flight.record(batch, tokens, logits)
            if observers.present:
                observers.step(len(batch.tokens), len(batch.segments), sum(map(len, tokens)))
        return True

    def start(self, on_step: Callable[[], object] | None = None) -> None:
        """Let a thread of the engine's own run the steps until ``stop`` or ``close``, and sleep when none is needed.

        Callers that wait for a stream then sleep; ``async for`` works on streams. on_step: called on that thread after
        every step, to look at streams (``pending``) and to submit or cancel; it must not wait. A step that fails ends
        what is in flight with its error. Raises UsageError where it runs already.
        """
        self._lifetime.check()
        arguments.callback("on_step", on_step)
        self._driver.start(on_step)

    def stop(self) -> None:
        """End the thread of ``start`` after its step; requests in flight stay. Without one this does nothing."""
        self._driver.stop()

    def interrupt(self) -> None:
        """Make a step that runs on another thread stop between two tiles; it raises KernelError there."""
        if self._lifetime.is_open:
            self._execution.interrupt(self.executable)
            self._registry.interrupt()

    # ------------------------------------------------------------------------------------------------- requests ---

    def generate(
        self, prompts: Prompts, params: SamplingParams | None = None, *, adapters: AdaptersOf = None
    ) -> list[Completion]:
        """Answer prompts, as many at a time as fit, and return the completions in their order.

        prompts: one or several; a list of integers is one prompt of token ids.
        params, adapters: for every prompt that is not a Request. Adapters are names, or ``((name, weight), ...)`` that
        combine; a list has one for each prompt, None is the base model.

        Raises RequestError, before anything runs, for a prompt that cannot be served, and AdapterError or ResourceError
        for one whose adapter cannot be loaded.
        """
        streams = self._submissions.start_all(self._submissions.prepare(prompts, params, adapters))
        try:
            return [stream.result() for stream in streams]
        except BaseException:
            abandon(streams)
            raise

    def stream(
        self, prompts: Prompts, params: SamplingParams | None = None, *, adapters: AdaptersOf = None
    ) -> Iterator[Event]:
        """Answer prompts as ``generate`` does, and return their events as they come; ``Event.index`` says whose.

        Each prompt's last event has its ``completion``. Closing the iterator early cancels what is unfinished.
        """
        return self._submissions.events(self._submissions.prepare(prompts, params, adapters))

    def submit(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        adapter: Adapters | None = None,
        index: int = 0,
        ready: deque[Output] | None = None,
        follows: bool = False,
    ) -> Stream:
        """Add one request to those in flight and return its stream; it moves on whenever any thread runs the engine.

        ready: gets an ``Output`` of this ``index`` for each event, on the thread that runs the step: ``on_step`` then
        need not look at every stream. Events that are taken from it (``next_event``) are taken from the stream.
        follows: it belongs with one that was let in, and is let in as well, whatever waits.

        Raises OverloadedError where too many wait already (``scheduler.max_waiting`` and others), before the prompt is
        tokenized, if its length says as much.
        """
        arguments.ready(ready)
        return self._submissions.submit(prompt, params, adapter, index, ready, follows=follows)

    def check_room(self, tokens: int = 0, *, coming: int = 0, tenant: str = "") -> None:
        """Raise the OverloadedError that a request whose prompt has so many tokens would meet; costs microseconds.

        coming: requests that the caller has let in before and not submitted yet: they will wait as well.
        tenant: whose it is, for schedulers that share.
        """
        tokens, coming = arguments.count("tokens", tokens, 0), arguments.count("coming", coming, 0)
        self._submissions.check_room(tokens, coming, tenant)

    def check_adapters(self, adapters: Adapters | None) -> None:
        """Raise what a request with these adapters would meet before it runs.

        RequestError, AdapterError or ResourceError. They are read if they are not in memory; the call waits for that,
        and for no step.
        """
        self._lifetime.check()
        self._registry.try_out(checks.adapters(adapters))

    def score(
        self, prompt: Prompt, continuation: str | Iterable[int], *, adapter: Adapters | None = None
    ) -> tuple[Logprob, ...]:
        """Return the log-probabilities of a continuation's tokens, each after the prompt and those before it.

        Two texts are tokenized as one; where the end of the prompt then becomes another token, that one counts to the
        continuation. The sum of ``logprob`` is the log-probability of the whole. Raises RequestError as ``generate``.
        """
        return self._submissions.score(prompt, continuation, adapter)

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
        self._lifetime.check()
        arguments.callback("started", started)
        arguments.flag("normalize", normalize)
        if not getattr(self.executable, "has_hidden_states", False):
            why = "it gives no hidden states of this model"
            raise UsageError(f"backend {self.config.backend.use}", why, "use backend native")
        return self._embeddings.embed(prompts, pooling, adapters, normalize, started)

    def cancel(self, stream: Stream) -> None:
        """End a request soon; its last event then says ``cancelled``. Any thread may call this, at any time.

        Its rows are in no further step; a step that no other request needs stops between two tiles.
        """
        arguments.stream(stream).cancel()

    @property
    def startup(self) -> Mapping[str, float]:
        """Seconds that each phase of making this engine took, in their order; they add up to the whole."""
        return self._startup_times.seconds

    @property
    def scheduler(self) -> Scheduler:
        """The scheduler in use: what waits and what runs, its policy, its cache of prefixes."""
        return self._in_flight.scheduler

    def load(self) -> Load:
        """Return what there is to do, and counts since the engine was made; any thread may ask, during a step too."""
        return self._schedulers.load()

    @property
    def stall(self) -> Stall | None:
        """The step that has not ended for ``scheduler.stall_ms``, and where it is; None while all goes on."""
        return self._watchdog.stall

    def bound(self) -> Sequence[BoundOp]:
        """Return which kernel serves each operation, for which batch sizes, and why."""
        self._lifetime.check()
        return self.executable.bound()

    def profile(self, *, events: int = 65536) -> AbstractContextManager[Profile]:
        """Measure what the engine does inside of a ``with`` block: ``with engine.profile() as profile: ...``.

        Afterwards ``profile.table()`` is a text, ``profile.write_trace(path)`` writes a trace for Perfetto. It costs
        about 0.2 us for each op of a step, and nothing outside of the block. Steps of other threads are measured too.
        events: of each thread, the latest that are kept for the trace.

        Raises UsageError where a profile is being taken already.
        """
        self._lifetime.check()
        events = arguments.count("events", events, 1, arguments.MOST_EVENTS)
        from infeng_core.telemetry.profile import measuring

        return measuring(self._observers, self.executable, self._driver.lock.run, events)

    def observe(self, observer: Observer) -> AbstractContextManager[None]:
        """Tell an observer what the engine does inside of a ``with`` block; it begins and ends between two steps.

        Observers that a configuration names (``observers.use``) are told from the engine's making to its closing.
        """
        self._lifetime.check()
        arguments.observer(observer)
        return self._observing(observer)

    @contextmanager
    def _observing(self, observer: Observer) -> Iterator[None]:
        self._driver.lock.run(partial(self._observers.add, observer))
        try:
            yield
        finally:
            self._driver.lock.run(partial(self._observers.remove, observer))

    def tokenize(self, text: str) -> list[int]:
        """Return the ids that ``text`` becomes as a prompt."""
        self._lifetime.check()
        return self.tokenizer.encode([arguments.text(text)])[0]

    # ---------------------------------------------------------------------------------------------------- ending ---

    def close(self) -> None:
        """End what is in flight as cancelled and give memory and threads back; calling it again does nothing.

        After close everything else raises UsageError, but for cancelling and interrupting, of which nothing is left.
        """
        if self._lifetime.is_forked:
            self._lifetime.is_open = False  # nothing here is this process's own
            return
        self._driver.halt()
        self._driver.lock.run(self._close)
        self._driver.stop()

    def _close(self) -> None:
        """Each part can be done again, after an interrupt in the middle. Streams see their ends first."""
        if self._lifetime.is_released:
            return
        self._in_flight.close()
        self._lifetime.is_open = False
        if self._saved is not None:
            self._saved.save(self._in_flight.scheduler.prefixes.tree, most=None)
            self._saved.close()
        self._registry.close()
        self._watchdog.stop()
        self._sampler.close()
        self.executable.close()
        self._observers.close()
        self._lifetime.is_released = True

    def __enter__(self) -> Engine:
        """Return the engine."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the engine."""
        self.close()

    # -------------------------------------------------------------------------------------------------- internals ---

    def _save_prefixes(self) -> bool:
        """Save some of the prefixes that are new, where they outlive the process; return whether there may be more."""
        self._place.part = None if self._saved is None else "prefixes on disk"
        return self._saved is not None and self._saved.save(self._in_flight.scheduler.prefixes.tree) > 0

    def _cancel(self, output: Output) -> None:
        if output.finished or not self._lifetime.is_open or self._lifetime.is_forked:
            return
        self._in_flight.cancel(output)
        self._submissions.ring()
        self._execution.cancel_unwanted(self.executable)
        if not self._driver.is_started:  # else that sees to it, or the thread that runs a step
            self._driver.lock.attempt(self._in_flight.settle)
