"""An engine under measurement: opened from the options, with the facts that its results share."""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from infeng_inspect.api import peak_rss

from infeng_bench import options
from infeng_bench.engine.place import IN_PROCESS, EnginePlace
from infeng_bench.engine.running import perform
from infeng_bench.engine.work import Work
from infeng_bench.kernels.roofline import Roofline
from infeng_bench.load.place import Place
from infeng_bench.models.model_shape import most_common
from infeng_bench.models.token_costs import Costs, costs
from infeng_bench.reports import results
from infeng_bench.reports.machine import kernel_features
from infeng_bench.reports.results import OURS
from infeng_bench.stats import cores
from infeng_bench.stats.contention import Mark, judged
from infeng_bench.stats.rates import Ceiling
from infeng_core.api import Engine

WARM_UP = 16  # tokens of the prompt, and steps, before anything is timed


class Session:
    """An engine and the machine's ceilings."""

    def __init__(
        self, engine: Engine, name: str, loaded: float, ceilings: Roofline | None, settings: Sequence[str] = ()
    ) -> None:
        """Made by ``opened``. loaded: seconds. settings: the user's, ``section.key=value``."""
        self.engine = engine
        self.threads = engine.cpu.place(engine.config.threads, engine.model.nbytes).workers
        self.cost: Costs = costs(engine.model, engine.config.kv_cache.dtype)
        self._name = name
        self._features = kernel_features(engine.selector, engine.bound())
        self._loaded = loaded
        self._ceilings = ceilings
        self._settings = list(settings)
        self._meter = Meter(self.threads)

    def restart(self) -> None:
        """Measure the process's utilization and waits from now on."""
        self._meter = Meter(self.threads)

    def ceiling(self, rows: int) -> Ceiling | None:
        """Return the ceiling of linears on ``rows`` rows with the instructions that their kernels use."""
        features: set[str] = set()
        integer = False
        for op in self.engine.bound():
            if op.op == "linear" and op.rows[0] <= rows <= op.rows[1]:
                features |= {*self._features.get(f"{op.library}/{op.kernel}", ())}
                integer = integer or "int" in op.detail
        return Ceiling.of(self._ceilings, features, integer)

    def record(self, kind: str, figures: Mapping[str, Any], **context: Any) -> dict[str, Any]:
        """Return a result: ``figures`` and those of the process and the engine; context as in ``results.record``."""
        config = self.engine.config
        common: dict[str, Any] = {
            "cpu_utilization": self._meter.utilization(),
            "contention": self._meter.contention(),
            "core_use": self._meter.cores() or None,
            "peak_rss_bytes": peak_rss(),
            "load_seconds": self._loaded,
            "bytes_per_token": self.cost.weight_bytes,
            "kv_bytes_per_position": self.cost.kv_bytes,
            "macs_per_token": self.cost.macs_per_token,
        }
        if self.cost.expert_bytes:
            common |= {"expert_bytes": self.cost.expert_bytes, "expert_share": self.cost.share}
        if self._ceilings is not None:
            common["roofline"] = self._ceilings.to_dict()
        if config.speculation.use != "none":
            context["speculate"] = f"{config.speculation.use}:{config.speculation.most}"
        return results.record(
            kind,
            {name: value for name, value in {**common, **figures}.items() if value is not None},
            **self.facts(),
            **context,
        )

    def facts(self) -> dict[str, Any]:
        """Return the facts of the engine for a result."""
        return {
            "model": self._name,
            "format": most_common(self.engine.model.formats_used),
            "kv_dtype": self.engine.config.kv_cache.dtype,
            "threads": self.threads,
            "settings": self._settings or None,
            "kernels": results.kernels(self.engine.bound()),
        }


@dataclass(frozen=True)
class Sides:
    """Places that are measured in turn, by name, and the session of the engine of this process."""

    session: Session
    places: Mapping[str, Callable[[], AbstractContextManager[Place]]]


class Meter:
    """The CPU utilization of this process since a moment, and the time that its threads waited."""

    def __init__(self, threads: int) -> None:
        """Start now. threads: of the engine."""
        self._threads = threads
        self._wall, self._cpu = time.perf_counter(), time.process_time()
        self._mark = Mark.now()
        self._ticks = cores.ticks()

    def utilization(self) -> float:
        """Return CPU time over wall time and threads; 1: all threads were busy all the time."""
        wall, cpu = time.perf_counter() - self._wall, time.process_time() - self._cpu
        return cpu / wall / self._threads

    def cores(self) -> dict[str, dict[str, float]]:
        """Return how busy each core was, all programs together."""
        return cores.used(self._ticks, cores.ticks())

    def contention(self) -> dict[str, Any]:
        """Return how long the threads waited for a core, in the form of ``contention.judged``."""
        return judged({OURS: [self._mark.waits()]})


@contextlib.contextmanager
def opened(arguments: argparse.Namespace, **settings: object) -> Iterator[Session]:
    """Load the model that the options name, warm up, and measure the machine if ``--roofline`` says so.

    settings: the verb's, as in ``options.config``; the user's take precedence.
    """
    name = options.model_name(arguments)
    config = options.config(arguments, **settings)
    path = options.model_directory(arguments, config.model.format)
    config = options.config(arguments, model__path=path, **settings)
    start = time.perf_counter()
    with Engine(config=config) as engine:
        loaded = time.perf_counter() - start
        workers = engine.cpu.place(engine.config.threads, engine.model.nbytes).workers
        ceilings = options.roofline(arguments, workers)
        perform(engine, Work("decode", 1, min(WARM_UP, engine.limits.context // 4), 4), seed=2**31)
        yield Session(engine, name, loaded, ceilings, arguments.assignments)


@contextlib.contextmanager
def alone(arguments: argparse.Namespace, settings: Mapping[str, object]) -> Iterator[Sides]:
    """Open an engine without another side; arguments as in ``opened``."""
    with opened(arguments, **settings) as session:
        yield Sides(session, {IN_PROCESS: lambda: EnginePlace(session.engine)})
