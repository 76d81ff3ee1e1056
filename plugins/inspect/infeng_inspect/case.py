"""One op in a program, on random input: kernels are checked, tested and measured on it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

from infeng_core.api.kernels import Kernel, Library, Pool, problems
from infeng_inspect.judges import Judges
from infeng_inspect.lora import Lora, RandomAdapters
from infeng_inspect.operands import Arrays, Operands
from infeng_inspect.ops import Ops
from infeng_inspect.steps import Sequences, Steps

SEED = 20


class OneOp:
    """A program of one op, ``calls`` times, over operands from a fixed seed: two programs of one case compute the
    same."""

    _ops: Ops

    def __init__(
        self,
        case: problems.Fields,
        kernel: Kernel | None,
        reference: Library,
        steps: Sequence[Sequences],
        *,
        adapters: RandomAdapters | None = None,
        others: Sequence[Kernel] = (),
        pool: Pool | None = None,
        calls: int = 1,
        copies: int = 1,
        like: OneOp | None = None,
    ) -> None:
        """Make the program for batches like ``steps``.

        kernel: the kernel to run; None: the reference's. others: kernels for ops around it, each instead of the
        reference's. copies: of the weight, or layers of the cache; calls take turns on them. like: another program
        whose weights or cache this one shares. Raises NoJudgeError where the reference lacks a kernel that is needed,
        NativeError where a kernel declines.
        """
        self.case, self.calls, self.copies = case, calls, copies
        self._steps = Steps(case, steps)
        self.rows, self.context = self._steps.most, self._steps.context
        pool, random = pool or _small_pool(), np.random.default_rng(SEED)
        device = None if kernel is None else kernel.device
        self.program = self._steps.program(pool, device)
        lora = None if adapters is None else Lora(self.program, adapters, self.rows, random)
        self._operands = Operands(self.program, random, is_sampled=self._steps.is_gathered)
        self._ops = Ops(
            case,
            self.program,
            pool,
            self._steps,
            self._operands,
            # All kernels of a program compute on one device.
            Judges(reference.kernels if kernel is None or device is None else kernel.siblings, others, self.rows),
            lora,
            device=device,
            copies=copies,
            is_timed=calls > 1,
            like=None if like is None else like._ops,
        )
        emit = self._ops.declare(kernel)
        for call in range(calls):
            emit(call)
        self.program.finish()
        self._ranges = [lora.ranges(rows) if lora else () for rows in self._steps.rows]
        self._batches = [self._steps.batch(step, self._ops.vocabulary) for step in steps]
        self._operands.fill()
        self.damage: str | None = None
        """Description of the first write of a run outside its outputs."""

    def run(self, step: int) -> Arrays:
        """Run a step on fresh input; return the outputs of the op by name."""
        self._operands.fill()
        before, rows = self._operands.seen(), self._steps.rows[step]
        self.program.run(*self._batches[step], self._ranges[step])
        self.damage = self.damage or self._operands.damage(before, rows)
        if not self.program.scratch_is_intact:
            self.damage = self.damage or "it wrote to more than its scratch memory"
        return self._operands.results(rows)

    def once(self) -> None:
        """Run every step once, on the present content of the buffers, to time it."""
        for batch, ranges in zip(self._batches, self._ranges, strict=True):
            self.program.run(*batch, ranges)

    def work(self) -> tuple[int, int]:
        """Return (multiply-adds, bytes) of one call, as the program's own profile counts them; 0 where unknown."""
        self.program.profile(True, events=0)
        self.once()
        phases = self.program.profile_read().phases
        self.program.profile(False)
        return int(phases["macs"].sum()) // self.calls, int(phases["bytes"].sum()) // self.calls


@cache
def _small_pool() -> Pool:
    return Pool(2, spin_us=0)  # two workers, so that a kernel whose tiles depend on each other is detected
