"""The kernels of a case: the kernel that is checked, and the kernels of the ops around it, which are not.

The reference judges the kernels of the engine's own ops; those of an op that a library describes, the op's plain
kernel (``kernels.libraries.plain_kernel``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from infeng_core.api.kernels import Kernel, native, problems
from infeng_inspect.steps import asked


class NoJudgeError(LookupError):
    """The reference has no kernel to compare with: the format or the op is a plugin's own."""


class Judges:
    """The kernels of a reference, for programs of up to ``rows`` rows."""

    def __init__(self, reference: Sequence[Kernel], others: Sequence[Kernel], rows: int) -> None:
        """``others``: kernels that replace the reference's, each for its op."""
        self._reference, self._others = reference, {other.op: other for other in others}
        self._rows = rows

    def of_case(self, case: problems.Fields) -> native.Bindings:
        """Return the kernel for the op of a case; raises NoJudgeError."""
        fields = asked(case)
        op, _ = fields.pop("op"), fields.pop("rows")
        return self.of(op, **fields)

    def of(self, op: str, **fields: Any) -> native.Bindings:
        """Return the kernel of an op; raises NoJudgeError."""
        if op in self._others:
            return self.bound(self._others[op])
        problem = problems.problem({"op": op, "rows": [1, self._rows], **fields})
        for kernel in self._reference:
            if kernel.op == op and kernel.accepts(problem):
                return self.bound(kernel)
        raise NoJudgeError(f"the reference has no kernel for {problems.describe(problem)}")

    def bound(self, kernel: Kernel) -> native.Bindings:
        """Return ``kernel`` for all numbers of rows."""
        return [(self._rows, kernel)]
