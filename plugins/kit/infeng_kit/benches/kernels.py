"""Kernels, each beside the kernel that the engine would choose without the plugin, at the sizes of a model."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from infeng_inspect.api import NoJudgeError, OneOp, sequences, variants

from infeng_core.api import NativeError, Plugins, load_config
from infeng_core.api.formats import BUILTIN, format_lookup
from infeng_core.api.inspection import problem_fields
from infeng_core.api.kernels import REFERENCE, Kernel, Pool, Problem, Selector, describe, problem
from infeng_kit.benches.pairs import Pair
from infeng_kit.cases import Case, reference
from infeng_kit.checks.library import own_states
from infeng_kit.conformance import cut, fits, suite
from infeng_kit.model_problems import asked_in_formats

if TYPE_CHECKING:
    from infeng_kit.plan import Plan

MACS, BYTES, CALLS = 1 << 28, 64 << 20, 256
"""Multiply-adds, bytes and calls of one reading at most; a call that needs more is a reading by itself. Beside the
reference, which takes seconds for it, a weight has fewer outputs."""
WITH_COPIES = ("linear", "attention")
"""Ops whose calls take turns on copies of what they read, so that it has left the caches when it is read again."""


class Kernels:
    """The kernels of a plugin, and the choice of the engine without it."""

    def __init__(self, plan: Plan, threads: int, rows: Sequence[int], formats: Sequence[str], named: str) -> None:
        """Prepare for steps of ``rows`` rows.

        formats: of weights and caches; (): the library's own, else the engine's default, else the first that a kernel
        accepts. named: a part of the names of the kernels that are measured.
        """
        from infeng_bench.api import pool

        self._plan, self._threads, self._rows, self._wanted, self._named = plan, threads, rows, formats, named
        without = {"plugins.disable": [plan.plugin], "threads.count": threads}
        self._without = Plugins.discover(load_config(overrides=without))
        self._selector = Selector(self._without, self._without.config, self._without.cpu)
        self._pool: Pool = pool(self._without.config, threads)
        self.left_out: list[str] = []
        """Why kernels were not measured."""

    def close(self) -> None:
        """End the processes that tried libraries."""
        self._selector.close()

    def pairs(self) -> Iterator[Pair]:
        """Yield each kernel on each problem of the model that it accepts."""
        plugins = self._plan.plugins()
        lookup = format_lookup(plugins)
        for state in own_states(self._plan):
            if state.native is None:
                self.left_out.append(f"library {state.name}: {state.reason}")
                continue
            own = [one for one in state.native.formats if one not in BUILTIN]
            for kernel in state.native.kernels:
                if self._named not in kernel.name:
                    continue
                missing = sorted(state.features_of(kernel.name, kernel.features) - plugins.cpu.features)
                if missing:
                    self.left_out.append(f"kernel {kernel.name}: this processor has no {', '.join(missing)}")
                    continue
                chosen = suite(kernel, [(one, lookup(one).activation) for one in own])
                found = 0
                for pair in self._of(kernel, chosen, own):
                    found += 1
                    yield pair
                if not found:
                    why = "it accepts no problem of the model in these formats and rows"
                    self.left_out.append(f"kernel {kernel.name}: {why}")

    def _of(self, kernel: Kernel, chosen: Sequence[Case], own: Sequence[str]) -> Iterator[Pair]:
        config = self._without.config
        weights = self._formats((case.fields.get("weight") for case in chosen), own, config.model.format)
        caches = self._formats((case.fields.get("kv") for case in chosen), (), config.kv_cache.dtype)
        settings = {"threads__count": self._threads}
        for asked in asked_in_formats(self._plan, kernel.op, weights, caches, settings):
            low, high = asked.rows
            for rows in self._rows if fits(kernel, asked) else ():
                if low <= rows <= high:
                    with contextlib.suppress(NoJudgeError, NativeError):
                        yield self._pair(kernel, asked, rows)

    def _formats(self, accepted: Iterable[str | None], own: Sequence[str], default: str) -> list[str | None]:
        """Return the formats in which a kernel is measured.

        They are some of those that it accepts; a kernel whose op has no format is measured once: [None].
        """
        every = [one for one in dict.fromkeys(accepted) if one is not None]
        if not every:
            return [None]
        if self._wanted:
            return [one for one in every if one in self._wanted] or [None]
        first = [one for one in every if one in own] or [one for one in every if one == default] or every[:1]
        return [*first]

    def _pair(self, kernel: Kernel, asked: Problem, rows: int) -> Pair:
        """Return a kernel beside the engine's choice on the same operands; raises where one of them declines."""
        from infeng_bench.api import KernelProgram

        beside = self._selector.choose(asked)
        fields: dict[str, Any] = {**problem_fields(asked), "workers": self._threads}
        fields["rows"] = [asked.rows[0], rows]
        if beside.library == REFERENCE:
            fields = cut(fields, MACS // rows)
        adapters, _ = next(variants(fields, [rows]))
        more: dict[str, Any] = {"adapters": adapters, "pool": self._pool}
        step = [sequences(fields, rows)]
        macs, nbytes = OneOp(fields, beside, reference(), step, **more).work()
        calls = max(1, min(CALLS, MACS // max(macs, 1), BYTES // max(nbytes, 1)))
        more |= {"calls": calls, "copies": calls if asked.op in WITH_COPIES else 1}
        other = OneOp(fields, beside, reference(), step, **more)
        own = OneOp(fields, kernel, reference(), step, **more, like=other)
        name = f"{beside.library}/{beside.name}"
        work = describe(problem(fields), str(rows))
        programs = KernelProgram(f"{kernel.library}/{kernel.name}", own), KernelProgram(name, other)
        return replace(Pair(f"kernel {kernel.name}", work, name, *programs), rows=rows)
