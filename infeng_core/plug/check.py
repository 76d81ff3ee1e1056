"""The first-use check: a kernel is believed only after it has agreed with the reference on a small random case.

The case runs in the child process that tried the library, so a kernel that crashes takes nothing down with it. Verdicts
are kept (``verdicts.py``).
"""

from __future__ import annotations

import json

from infeng_core import _native
from infeng_core.plug import problems
from infeng_core.plug.cases import small
from infeng_core.plug.libraries import LibraryState
from infeng_core.plug.reason import READY, Reason


class FirstUse:
    """Compares kernels with the reference library."""

    def __init__(self, reference: LibraryState) -> None:
        self.reference = reference
        self._known: dict[tuple[str, str], Reason] = {}

    def __call__(self, state: LibraryState, kernel: _native.Kernel, problem: _native.Problem) -> Reason:
        """Return READY or why ``kernel`` must not serve problems like ``problem``."""
        if state is self.reference or state.trial is None or state.verdicts is None:
            return READY
        case = small(problem, kernel)
        if case is None:
            return READY
        key = f"{kernel.name} {json.dumps(case, sort_keys=True)}"
        if (state.name, key) not in self._known:
            self._known[state.name, key] = self._verdict(state, kernel, case, key)
        return self._known[state.name, key]

    def _verdict(self, state: LibraryState, kernel: _native.Kernel, case: problems.Fields, key: str) -> Reason:
        assert state.trial is not None and state.verdicts is not None
        known = state.verdicts.get(key)
        if known is not None:
            return Reason(str(known["code"]), str(known["text"])) if known.get("code") else READY
        outcome = state.trial.check(kernel.name, case)
        if isinstance(outcome, Reason):
            reason = outcome
        elif outcome["difference"] is not None:
            reason = Reason("wrong_result", str(outcome["difference"]))
        else:
            reason = READY
        stored = {} if reason is READY else {"code": reason.code, "text": reason.text}
        if reason.code != "silent":  # a busy machine may be to blame
            state.verdicts.put(key, stored)
        return reason
