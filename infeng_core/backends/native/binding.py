"""The kernels of each op by batch size, and how many of the following steps each kernel fuses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from infeng_core import _native
from infeng_core.backends.interface import BoundOp
from infeng_core.batch import Limits
from infeng_core.kernels.libraries import rank
from infeng_core.kernels.problems import row_ranges

if TYPE_CHECKING:
    from infeng_core.kernels.choice import Selector

Bindings = list[tuple[int, _native.Kernel]]
"""Kernels by batch size: (most rows, kernel), ascending."""

Problem = Mapping[str, Any]
"""The formats and sizes of a ``_native.Problem``."""


class Fused(NamedTuple):
    """What an op of a program takes into itself of the steps that follow it, in order."""

    op: str
    detail: str
    taken: tuple[str, ...]
    left: tuple[str, ...]  # the others, which are an op ``epilogue``
    why: str  # the first of them is left: the kernel, and its reason; "" where none is left
    times: int  # how many such ops the program has


class Binder:
    """Asks the selector for a kernel for every range of batch sizes and remembers the answers.

    An op is ``sampled`` if it has a row for each sampled row instead of each row of the batch. ``steps`` are the
    names of the steps that follow it: "bias", "residual", "silu_mul", "quantize".
    """

    def __init__(
        self,
        selector: Selector,
        limits: Limits,
        threads: int,
        adapters: str | None = None,
        program: Binder | None = None,
    ) -> None:
        """Bind for batches within ``limits`` on ``threads`` workers.

        adapters: the type in which they are stored. program: the binder of the other ops of the same program.
        """
        self._selector = selector
        self._adapters = adapters
        self._limits = limits
        self.threads = threads
        self._reasons: dict[tuple[str, str], str] = {}  # of the latest choice, by library and kernel
        self.noted: list[tuple[str, str]] = [] if program is None else program.noted
        """(op, detail) of every op of the program, in its order."""
        self.asked: list[_native.Problem] = []
        """The problems whose decisions the program uses."""
        self._noted_kernels: dict[tuple[str, str], _native.Kernel] = {}
        self._bound: dict[tuple[str, str, tuple[int, int], str, str, str], int]
        self._bound = {} if program is None else program._bound
        self._noted_fused: dict[tuple[str, str, tuple[str, ...], int], list[tuple[bool, Problem]]]
        self._noted_fused = {} if program is None else program._noted_fused
        # Results by op; layers share them.
        self._fused: dict[tuple[bool, _native.Problem], int] = {}
        self._chosen: dict[tuple[bool, _native.Problem], tuple[Bindings, dict[tuple[str, str], str]]] = {}

    def operands(self, op: str) -> tuple[_native.Operand, ...]:
        """Return the operands of a row op; raises KernelError for one that no library of the engine describes."""
        return self._selector.operands(op)

    def fused(self, op: str, sampled: bool, problem: Problem, steps: Sequence[str]) -> int:
        """Return how many leading steps the best kernels of all row ranges can fuse.

        A library that the manifest puts first keeps the op even if another one could fuse more.
        """
        key = sampled, self._problem(op, (1, 1), problem, steps)
        if key not in self._fused:
            self._fused[key] = self._find_fused(op, sampled, problem, steps)
        return self._fused[key]

    def choose(self, op: str, sampled: bool, problem: Problem, steps: Sequence[str] = ()) -> Bindings:
        """Return the kernel of each row range; adjacent ranges are joined if one kernel serves both.

        Raises KernelError for a range without a kernel.
        """
        key = sampled, self._problem(op, (1, 1), problem, steps)
        if key not in self._chosen:
            self._chosen[key] = self._choose(op, sampled, problem, steps)
        bindings, reasons = self._chosen[key]
        self._reasons |= reasons
        return bindings

    def _find_fused(self, op: str, sampled: bool, problem: Problem, steps: Sequence[str]) -> int:
        fused = len(steps)
        for rows in self._row_ranges(sampled):
            if fused and not self._takes_all(self._problem(op, rows, problem, steps[:fused])):
                kernel = self._selector.choose(self._problem(op, rows, problem, []))
                while fused and not self._selector.fits(kernel, self._problem(op, rows, problem, steps[:fused])):
                    fused -= 1
        return fused

    def _choose(
        self, op: str, sampled: bool, problem: Problem, steps: Sequence[str]
    ) -> tuple[Bindings, dict[tuple[str, str], str]]:
        """Return the kernels, and the reason for each choice."""
        bindings: Bindings = []
        reasons: dict[tuple[str, str], str] = {}
        begin = 1
        for rows in self._row_ranges(sampled):
            asked = self._problem(op, rows, problem, steps)
            kernel, chosen = self._selector.choose(asked), self._selector.decide(asked).chosen
            self.asked.append(asked)
            joined = self._problem(op, (begin, rows[1]), problem, steps)
            if bindings and _name(bindings[-1][1]) == _name(kernel) and self._selector.fits(kernel, joined):
                bindings.pop()
            else:
                begin = rows[0]
            bindings.append((rows[1], kernel))
            reasons[_name(kernel)] = str(chosen.reason) if chosen else ""
        return bindings, reasons

    def note(self, op: str, detail: str, kernels: Bindings, *, is_listed: bool = True) -> None:
        """Remember that the program's next op got ``kernels``; ``bound_ops`` lists it if ``is_listed``."""
        self.noted.append((op, detail))
        self._noted_kernels |= {_name(kernel): kernel for _, kernel in kernels}
        begin = 1
        for end, kernel in kernels if is_listed else ():
            reason = self._reasons[_name(kernel)]
            key = (op, detail, (begin, end), kernel.library, kernel.name, reason)
            self._bound[key] = self._bound.get(key, 0) + 1
            begin = end + 1

    def note_fused(
        self, op: str, detail: str, sampled: bool, problem: Problem, steps: Sequence[str], fused: int
    ) -> None:
        """Remember that the program's next op takes the first ``fused`` of ``steps`` into itself."""
        if steps:
            self._noted_fused.setdefault((op, detail, tuple(steps), fused), []).append((sampled, problem))

    def fused_steps(self, op: str) -> list[Fused]:
        """Return what the noted ops of a kind take into themselves, in order; kernels are asked why not more."""
        found = []
        for (kind, detail, steps, fused), noted in self._noted_fused.items():
            if kind == op:
                why = self._why_left(op, *noted[0], steps, fused) if fused < len(steps) else ""
                found.append(Fused(op, detail, steps[:fused], steps[fused:], why, len(noted)))
        return found

    def _why_left(self, op: str, sampled: bool, problem: Problem, steps: Sequence[str], fused: int) -> str:
        """Return the reason of the first kernel that does the op and does not take the step at ``fused`` as well."""
        for rows in self._row_ranges(sampled):
            chosen = self._selector.choose(self._problem(op, rows, problem, steps[:fused]))
            for one in self._selector.decide(self._problem(op, rows, problem, steps[: fused + 1])).candidates:
                if (one.library, one.kernel) == _name(chosen) and one.native is None and one.reason.code != "outranked":
                    return f"{one.library}/{one.kernel}: {one.reason}"
        return "its tiles would be too few" if steps[fused] == "quantize_wide" else "another library comes first"

    @property
    def is_outdated(self) -> bool:
        """Whether a kernel that was noted has failed on a later problem, so that all ops must be bound anew."""
        return any(self._selector.is_refused(kernel) for kernel in self._noted_kernels.values())

    def bound_ops(self) -> list[BoundOp]:
        """Return the noted ops in order; equal lines of different layers are one."""
        return [
            BoundOp(op, f"{detail} x{count}" if count > 1 else detail, rows, library, kernel, reason)
            for (op, detail, rows, library, kernel, reason), count in self._bound.items()
        ]

    def _takes_all(self, problem: _native.Problem) -> bool:
        """Return whether the best kernel for ``problem`` comes from the first library that the manifest allows."""
        decision, config = self._selector.decide(problem), self._selector.config
        if decision.chosen is None:
            return False
        place = rank(decision.chosen.library, config)
        declined = [c for c in decision.candidates if c.reason.code in ("cannot_fuse", "cannot_handle", "declines")]
        return not any(rank(candidate.library, config) < place for candidate in declined)

    def _row_ranges(self, sampled: bool) -> list[tuple[int, int]]:
        return row_ranges(self._limits.max_samples if sampled else self._limits.max_rows)

    def _problem(self, op: str, rows: tuple[int, int], problem: Problem, steps: Sequence[str]) -> _native.Problem:
        needs = [*problem.get("needs", ()), *(f"lora_{self._adapters}" for step in steps if step == "lora")]
        fields = {**problem, "needs": needs, "epilogues": list(steps)}
        return _native.Problem(op, rows=rows, workers=self.threads, **fields)


def _name(kernel: _native.Kernel) -> tuple[str, str]:
    return kernel.library, kernel.name
