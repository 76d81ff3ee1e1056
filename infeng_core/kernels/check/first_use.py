"""The first-use check: a kernel is used only after it has agreed with the reference on a small random case.

Each entry point that the engine may call is first called in the child process that tried the library, so a kernel
that crashes or never returns does not harm the engine. One failure, whatever the problem, refuses the kernel for all
problems. Verdicts are kept (``verdicts.py``).
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from infeng_core import _native
from infeng_core.kernels import problems
from infeng_core.kernels.libraries import LibraryState, plain_kernel
from infeng_core.machine.cpu import Cpu
from infeng_core.plug.reason import READY, Reason

DECLINES = Reason("declines")


class FirstUse:
    """Tries kernels, and compares them with the reference library."""

    def __init__(self, reference: LibraryState, states: Sequence[LibraryState], cpu: Cpu) -> None:
        self.reference = reference
        self._states, self._cpu = states, cpu
        self._judges: dict[str, tuple[LibraryState, _native.Kernel] | None] = {}
        self.refused: dict[tuple[str, str], Reason] = {}
        """Reasons why a kernel, by library and name, is refused in this engine."""
        self._keys: dict[_native.Problem, str] = {}

    def fits(self, state: LibraryState, kernel: _native.Kernel, problem: _native.Problem) -> Reason:
        """Return READY if ``kernel`` accepts ``problem``, DECLINES, or the fault that was found."""
        if state is self.reference or state.trial is None or state.verdicts is None:
            return READY if kernel.accepts(problem) else DECLINES
        if state.native is not None and problem.weight not in (None, *_native.WEIGHT_FORMATS, *state.native.formats):
            return DECLINES  # a format that the library does not know, so that the child would not know its name either
        refusal = self._refusal(state, kernel.name)
        if refusal is not None:
            return refusal
        key = f"fits {kernel.name} {self._key(problem)}"
        answer = state.verdicts.get(key)
        if answer is None:
            outcome = state.trial.fits(kernel.name, json.loads(self._key(problem)))
            if isinstance(outcome, Reason):
                return self._refuse(state, kernel.name, outcome)
            state.verdicts.put(key, answer := outcome)
        return READY if answer.get("fits") else DECLINES

    def agrees(self, state: LibraryState, kernel: _native.Kernel, problem: _native.Problem) -> Reason:
        """Return READY, or why ``kernel``, which accepts ``problem``, must not serve anything."""
        if state is self.reference or state.trial is None or state.verdicts is None:
            return READY
        case = (state.verdicts.get(f"fits {kernel.name} {self._key(problem)}") or {}).get("case")
        judge = self._judge(problem.op)
        by = f" by {judge[0].sha256} {judge[1].name}" if judge else ""
        key = f"agrees {kernel.name} {json.dumps(case, sort_keys=True)}{by}"
        if case is None or state.verdicts.get(key) is not None:
            return self._refusal(state, kernel.name) or READY
        outcome = state.trial.check(kernel.name, case, (str(judge[0].path), judge[1].name) if judge else None)
        if isinstance(outcome, Reason):
            return self._refuse(state, kernel.name, outcome)
        if outcome["difference"] is not None:
            return self._refuse(state, kernel.name, Reason("wrong_result", str(outcome["difference"])))
        state.verdicts.put(key, {})
        return READY

    def _judge(self, op: str) -> tuple[LibraryState, _native.Kernel] | None:
        if op not in self._judges:
            self._judges[op] = plain_kernel(op, self._states, self._cpu)
        return self._judges[op]

    def _key(self, problem: _native.Problem) -> str:
        """Return a problem as JSON, workers included: the question to the library here equals the one in the child."""
        if problem not in self._keys:
            self._keys[problem] = json.dumps({**problems.fields(problem), "workers": problem.workers})
        return self._keys[problem]

    def _refusal(self, state: LibraryState, kernel: str) -> Reason | None:
        """Return why ``kernel`` was refused, in this engine or, by the cache, in an earlier one."""
        assert state.verdicts is not None
        known = state.verdicts.get(f"refused {kernel}")
        if (state.name, kernel) not in self.refused and known is not None:
            self.refused[state.name, kernel] = Reason(str(known.get("code")), str(known.get("text")))
        return self.refused.get((state.name, kernel))

    def _refuse(self, state: LibraryState, kernel: str, reason: Reason) -> Reason:
        assert state.verdicts is not None and reason.is_fault
        self.refused[state.name, kernel] = reason
        if reason.code != "silent":  # a busy machine may be to blame
            state.verdicts.put(f"refused {kernel}", {"code": reason.code, "text": reason.text})
        return reason
