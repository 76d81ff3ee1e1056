"""The choice of the kernels to measure, and programs that consist of one op."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from infeng_inspect.api import OneOp

from infeng_core.api import EngineConfig, KernelError, Plugins
from infeng_core.api import kernels as kernels_api
from infeng_core.api.kernels import REFERENCE, Selector, describe, detect, row_ranges

ALL = "all"


class Subject(Protocol):
    """A repeatable op: one of our kernels or an oracle's."""

    name: str
    calls: int  # op calls of one ``once``

    def once(self) -> float:
        """Run it and return the seconds of all calls together."""


@dataclass(frozen=True)
class Choice:
    """A kernel and the processor features that it may use."""

    name: str  # library/kernel
    kernel: kernels_api.Kernel
    features: frozenset[str]


class Choices:
    """The kernels of an op that the engine, or the user, chooses.

    wanted: empty for the engine's choice, "all" for every kernel that accepts a problem (the reference only if it is
    named), or names such as "avx512" or "avx512/linear_vnni". peer: a library that is measured beside them where it
    accepts a problem, also if its results are only close. Raises KernelError for an unknown name.
    """

    def __init__(self, config: EngineConfig, op: str, wanted: Sequence[str], peer: str = "") -> None:
        """Load the kernel libraries."""
        self._op = op
        self._most = config.scheduler.max_batch_tokens
        self.plugins = Plugins.discover(config)
        self._plain = Selector(self.plugins, config, self.plugins.cpu)
        self._forced = []
        self._all = ALL in wanted
        for name in wanted:
            if name != ALL:
                forced = _with_force(config, op, name)
                self._forced.append(Selector(Plugins.discover(forced), forced, self.plugins.cpu))
        self._peers = []
        if peer:
            fast = _with_force(config, op, peer, "--peer", numerics="fast")
            self._peers.append(Selector(Plugins.discover(fast), fast, self.plugins.cpu))

    @property
    def reference(self) -> kernels_api.Library:
        """The library whose kernels run the other ops of a program."""
        native = next(state.native for state in self._plain.states if state.name == REFERENCE)
        assert native is not None
        return native

    def of(self, rows: int, **fields: Any) -> list[Choice]:
        """Return the kernels for batches of ``rows``, best first; raises KernelError if none accepts."""
        span = next(span for span in row_ranges(max(self._most, rows)) if span[0] <= rows <= span[1])
        problem = kernels_api.Problem(self._op, rows=span, **fields)
        found: dict[str, Choice] = {}
        for selector in self._forced or [self._plain]:
            kernel = selector.choose(problem)
            found[f"{kernel.library}/{kernel.name}"] = self._choice(selector, kernel)
        if self._all:
            found |= self._every(problem)
        for selector in self._peers:
            chosen = selector.decide(problem).chosen
            if chosen is not None and chosen.native is not None:
                found[f"{chosen.library}/{chosen.kernel}"] = self._choice(selector, chosen.native)
        if not found:
            raise KernelError(describe(problem), "no kernel accepts it", "infeng doctor shows the kernels")
        return list(found.values())

    def close(self) -> None:
        """End the processes that tried libraries."""
        for selector in (self._plain, *self._forced, *self._peers):
            selector.close()

    def _every(self, problem: kernels_api.Problem) -> dict[str, Choice]:
        able = {
            f"{candidate.library}/{candidate.kernel}"
            for candidate in self._plain.decide(problem).candidates
            if candidate.reason.code in ("chosen", "outranked") and candidate.library != REFERENCE
        }
        return {
            f"{state.name}/{kernel.name}": self._choice(self._plain, kernel)
            for state in self._plain.states
            for kernel in (state.native.kernels if state.native else ())
            if kernel.op == self._op and f"{state.name}/{kernel.name}" in able
        }

    def _choice(self, selector: Selector, kernel: kernels_api.Kernel) -> Choice:
        state = next(state for state in selector.states if state.name == kernel.library)
        return Choice(f"{kernel.library}/{kernel.name}", kernel, state.features_of(kernel.name, kernel.features))


class KernelProgram:
    """A program of one op with one of our kernels."""

    def __init__(self, name: str, op: OneOp) -> None:
        """Give ``op`` a name."""
        self.name, self.op, self.calls = name, op, op.calls

    def once(self) -> float:
        """Run it and return the seconds."""
        start = time.perf_counter()
        self.op.once()
        return time.perf_counter() - start


def pool(config: EngineConfig, threads: int) -> kernels_api.Pool:
    """Return the worker pool that an engine would have."""
    where = detect().place(replace(config.threads, count=threads))
    return kernels_api.Pool(threads, pin=where.pinned, cpus=where.mask)


def readings(subjects: Sequence[Subject], rounds: int) -> list[list[float]]:
    """Return seconds per call, ``rounds`` of each subject, taken in turn: A B C A B C."""
    for subject in subjects:
        subject.once()  # warms up: pages, caches, clock
    found: list[list[float]] = [[] for _ in subjects]
    for _ in range(rounds):
        for times, subject in zip(found, subjects, strict=True):
            times.append(subject.once() / subject.calls)
    return found


def _with_force(config: EngineConfig, op: str, name: str, option: str = "--kernel", **more: Any) -> EngineConfig:
    provenance = {**config.provenance, "kernels.force": option}
    return replace(config, kernels=replace(config.kernels, force={op: name}, **more), provenance=provenance)
