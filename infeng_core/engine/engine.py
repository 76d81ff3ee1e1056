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
from infeng_core.backends.interface import AsynchronousRuns, BoundOp, DeviceSampling, Executable
from infeng_core.batch import Batch
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
        speculate: "ngram", "ngram:K" or another drafter: guess up to K tokens ahead (``speculation.use``,
        ``speculation.tokens``).
        adapters: names to PEFT directories, artifacts or hub names, loaded at first use.
        overrides: settings by their dotted names, such as ``{"kv_cache.dtype": "f32"}``.
        config: a complete configuration in place of the arguments above.
        plugins: the result of ``Plugins.discover`` for ``config``, to save a second discovery.

        Raises ManifestError, ModelError, AdapterError, PluginError, KernelError or ResourceError, each with a remedy.
        """
        # Heavy imports run when the first engine is made, not when a program only names the class.
        from infeng_core.engine.assembly import assemble
        from infeng_core.plug.assembly import load_config
        from infeng_core.plug.plugin_boundary import optional

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
        self.config = parts.config  # whose backend.use names the first of backend.order that can run
        self.cpu, self.plugins, self.selector = parts.cpu, parts.plugins, parts.selector
        self.model, self.limits, self.tokenizer = parts.model, parts.limits, parts.tokenizer
        self.executable: Executable = parts.executable
        self.defaults: Mapping[str, Any] = parts.defaults
        """Sampling parameters of the model's generation_config.json, for servers and chats; requests use
        SamplingParams' own defaults."""
        self._registry, self._saved, self._schedulers = parts.registry, parts.saved, parts.schedulers
        self._in_flight, self._observers = parts.in_flight, parts.observers
        self._lifetime = Lifetime()
        nice = self.config.threads.nice
        self._driver = Driver(self._observed_step, self._save_prefixes, self._in_flight, self._lifetime, nice)
        self._submissions = Submissions(parts, self._driver, self._cancel, self._lifetime)
        self._embeddings = Embeddings(self._submissions)
        self._runs: AsynchronousRuns | None = optional(self.executable, AsynchronousRuns)
        device: DeviceSampling | None = optional(self.executable, DeviceSampling)
        self._sampled = None if device is None else device.sampled
        draws = None if device is None else device.samples
        self._sampler = Sampler(self.limits.max_samples, self.config.sampling.order, draws)
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
        """Run one batch; if all requests wait for adapters, sleep until one is loaded.

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
        was_late = self._execution.is_late
        if was_late:
            assert self._runs is not None
            place.part = backend
            self._deliver(*self._execution.finish(self.executable, self._runs))
        place.part = scheduler
        batch = self._in_flight.next_batch()
        if batch is None:
            place.part = None
            return was_late or self._in_flight.wait()
        place.part = backend
        batch = self._sampler.marked(self._embeddings.marked(batch))
        if self._runs is None:
            self._deliver(batch, self._execution.run(batch, self.executable))
        else:
            self._execution.start(batch, self._runs)
        return True

    def _deliver(self, batch: Batch, logits: NDArray[np.float32] | None) -> None:
        """Give callers the results of a batch that ran; without logits, it has none."""
        if logits is None:
            return
        self._place.part = HELPED
        observers, pick, given = self._observers, self._sampler.pick, (logits, batch, self._sampled)
        tokens = observers.timed("sample", pick, *given) if observers.present else pick(*given)
        self._place.part = STREAMS
        self._in_flight.scheduler.is_timed = self._execution.is_timed
        self._in_flight.record(batch, tokens, logits)
        if observers.present:
            observers.step(len(batch.tokens), len(batch.segments), sum(map(len, tokens)))

    def start(self, on_step: Callable[[], object] | None = None) -> None:
        """Start a thread of the engine's own that runs the steps until ``stop`` or ``close``, and sleeps without
        work.

        Callers that wait for a stream then sleep; ``async for`` works on streams. on_step: called on that thread
        after every step, to read streams (``pending``) and to submit or cancel; it must not wait. A step that fails
        ends the requests in flight with its error. Raises UsageError if the thread runs already.
        """
        self._lifetime.check()
        arguments.callback("on_step", on_step)
        self._driver.start(on_step)

    def stop(self) -> None:
        """End the thread of ``start`` after its step; requests in flight stay. Without a thread, do nothing."""
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
        params, adapters: for every prompt that is not a Request. Adapters are names, or ``((name, weight), ...)`` to
        combine several; a list has one entry for each prompt, None is the base model.

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
        """Answer prompts as ``generate`` does, and yield events as they come; ``Event.index`` is the prompt's.

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
        """Add one request to those in flight and return its stream; it advances whenever any thread runs the engine.

        ready: gets an ``Output`` of this ``index`` for each event, on the thread that runs the step, so that
        ``on_step`` need not poll every stream. Events taken from it (``next_event``) are removed from the stream.
        follows: it belongs to an accepted request, and is accepted too, however many wait.

        Raises OverloadedError if too many requests wait (``scheduler.max_waiting`` and others), before tokenization
        if the prompt's length suffices to decide.
        """
        arguments.ready(ready)
        return self._submissions.submit(prompt, params, adapter, index, ready, follows=follows)

    def check_room(self, tokens: int = 0, *, coming: int = 0, tenant: str = "") -> None:
        """Raise the OverloadedError that a request with a prompt of ``tokens`` tokens would meet; costs microseconds.

        coming: requests that the caller has accepted and not yet submitted, which will wait as well. tenant: the
        owner, for schedulers that share between tenants.
        """
        tokens, coming = arguments.count("tokens", tokens, 0), arguments.count("coming", coming, 0)
        self._submissions.check_room(tokens, coming, tenant)

    def check_adapters(self, adapters: Adapters | None) -> None:
        """Raise the error that a request with these adapters would meet before it runs.

        Raises RequestError, AdapterError or ResourceError. Adapters are read if they are not in memory; the call
        waits for that, but not for a step.
        """
        self._lifetime.check()
        self._registry.try_out(checks.adapters(adapters))

    def score(
        self, prompt: Prompt, continuation: str | Iterable[int], *, adapter: Adapters | None = None
    ) -> tuple[Logprob, ...]:
        """Return the log-probabilities of a continuation's tokens, each given the prompt and the tokens before it.

        Two texts are tokenized as one; if the last token of the prompt changes by this, it counts to the
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
        """Return a vector for each prompt, (hidden,) float32, from the final hidden states of its tokens.

        prompts, adapters: as in ``generate``. pooling: "mean" of all tokens, or "last" token alone. normalize: to
        length 1. A vector does not depend on its batch or on the steps into which the prompt was split. started: gets
        the stream of each request as it starts; its ``cancel`` ends the request from any thread.

        Raises RequestError as ``generate``, EndedError for a request that was cancelled or timed out, UsageError if
        the backend or the model has no hidden states.
        """
        self._lifetime.check()
        arguments.callback("started", started)
        arguments.flag("normalize", normalize)
        if not getattr(self.executable, "has_hidden_states", False):
            why = "it has no hidden states of this model"
            raise UsageError(f"backend {self.config.backend.use}", why, "use backend native")
        return self._embeddings.embed(prompts, pooling, adapters, normalize, started)

    def cancel(self, stream: Stream) -> None:
        """End a request soon; its last event then says ``cancelled``. Any thread may call this, at any time.

        Its rows are in no further step; a step that no other request needs stops between two tiles.
        """
        arguments.stream(stream).cancel()

    @property
    def startup(self) -> Mapping[str, float]:
        """Seconds of each phase of making this engine, in order; their sum is the whole time."""
        return self._startup_times.seconds

    @property
    def scheduler(self) -> Scheduler:
        """The scheduler in use: waiting and running requests, its policy, its prefix cache."""
        return self._in_flight.scheduler

    def load(self) -> Load:
        """Return the present work, and counts since the engine was made; any thread may ask, also during a step."""
        return self._schedulers.load()

    @property
    def stall(self) -> Stall | None:
        """The step that has run longer than ``scheduler.stall_ms``, and its place; None if there is none."""
        return self._watchdog.stall

    def bound(self) -> Sequence[BoundOp]:
        """Return which kernel serves each operation, for which batch sizes, and why."""
        self._lifetime.check()
        return self.executable.bound()

    def observe(self, observer: Observer) -> AbstractContextManager[None]:
        """Notify an observer of the engine's work inside a ``with`` block, which begins and ends between two steps.

        Observers in the configuration (``observers.use``) are notified from the engine's start to its closing.
        """
        self._lifetime.check()
        arguments.observer(observer)
        return self._observing(observer)

    @contextmanager
    def _observing(self, observer: Observer) -> Iterator[None]:
        self._driver.lock.run(partial(self._observers.begin, observer))
        try:
            yield
        finally:
            self._driver.lock.run(partial(self._observers.end, observer))

    def tokenize(self, text: str) -> list[int]:
        """Return the ids that ``text`` becomes as a prompt."""
        self._lifetime.check()
        return self.tokenizer.encode([arguments.text(text)])[0]

    # ---------------------------------------------------------------------------------------------------- ending ---

    def close(self) -> None:
        """End requests in flight as cancelled, free memory and end threads; a second call does nothing.

        Afterwards every other method raises UsageError, except ``cancel`` and ``interrupt``, which do nothing.
        """
        if self._lifetime.is_forked:
            self._lifetime.is_open = False  # nothing here belongs to this process
            return
        self._driver.halt()
        self._driver.lock.run(self._close)
        self._driver.stop()

    def _close(self) -> None:
        """Close the parts. Each step may be repeated after an interrupt. Streams see their ends first."""
        if self._lifetime.is_released:
            return
        self._execution.drop(self.executable, self._runs, always=True)
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
        """Save some of the new prefixes, if they are kept between runs; return whether there may be more."""
        self._place.part = None if self._saved is None else "prefixes on disk"
        return self._saved is not None and self._saved.save(self._in_flight.scheduler.prefixes.tree) > 0

    def _cancel(self, output: Output) -> None:
        if output.finished or not self._lifetime.is_open or self._lifetime.is_forked:
            return
        self._in_flight.cancel(output)
        self._submissions.ring()
        self._execution.cancel_unwanted(self.executable)
        if not self._driver.is_started:  # otherwise the engine's thread, or the thread in a step, does it
            self._driver.lock.attempt(self._settle)

    def _settle(self) -> None:
        """End cancelled requests, unless a batch on the device has rows of others: the next step ends them then."""
        self._execution.drop(self.executable, self._runs, always=False)
        if not self._execution.is_late:
            self._in_flight.settle()
