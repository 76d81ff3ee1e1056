"""The first-use check: a kernel is used only after it has agreed with the reference on a small random case.

Each entry point that the engine may call is first called in the child process that tried the library, so a kernel
that crashes or never returns does not harm the engine. One failure, whatever the problem, refuses the kernel for all
problems. Verdicts are kept (``verdicts.py``). Where the engine's own code fails, there is no verdict: the kernel does
not serve that one problem, in this engine, and the next engine tries it again.
"""

from __future__ import annotations

import json
from pathlib import Path

from infeng_core.api.inspection import DECLINES, READY, Reason
from infeng_core.api.kernels import Cpu, Judge, Kernel, Problem, problems
from infeng_inspect.trial import Trial
from infeng_inspect.verdicts import Verdicts

FINAL = frozenset({"crashed", "endless"})
"""Verdicts on loading that are kept; other failures may depend on the file's surroundings."""


class FirstUse:
    """Tries one library and its kernels, and compares them with the reference library."""

    def __init__(self, path: Path, sha256: str, reference: Path, reference_sha256: str, cpu: Cpu) -> None:
        """Take the files and their hexadecimal sha256."""
        self.trial = Trial(path, cpu, reference)
        self.verdicts = Verdicts(sha256, reference_sha256, cpu.features)
        self._refused: dict[str, Reason] = {}
        self._untried: dict[str, Reason] = {}
        self._keys: dict[Problem, str] = {}

    def opened(self) -> str | Reason:
        """Load the library in the child unless the outcome is known; return its name, or why it must not be mapped."""
        known = self.verdicts.get("open")
        if known is None or "code" not in known:
            outcome = self.trial.open()
            if isinstance(outcome, Reason):
                known = {"code": outcome.code, "text": outcome.text, "remedy": outcome.remedy}
            else:
                known = {"code": "ready", **outcome}
            if known["code"] == "ready" or known["code"] in FINAL:
                self.verdicts.put("open", known)
        if known["code"] != "ready":
            return Reason(str(known["code"]), str(known.get("text", "")), str(known.get("remedy", "")))
        return str(known.get("name"))

    def fits(self, kernel: Kernel, problem: Problem) -> Reason:
        """Return READY if ``kernel`` accepts ``problem``, DECLINES, or the fault that was found."""
        key = f"fits {kernel.name} {self._key(problem)}"
        refusal = self._refusal(kernel.name) or self._untried.get(key)
        if refusal is not None:
            return refusal
        answer = self.verdicts.get(key)
        if answer is None:
            outcome = self.trial.fits(kernel.name, json.loads(self._key(problem)))
            if isinstance(outcome, Reason):
                return self._refuse(kernel.name, outcome, key)
            self.verdicts.put(key, answer := outcome)
        return READY if answer.get("fits") else DECLINES

    def agrees(self, kernel: Kernel, problem: Problem, judge: Judge | None) -> Reason:
        """Return READY, or why ``kernel``, which accepts ``problem``, must not serve anything."""
        case = (self.verdicts.get(f"fits {kernel.name} {self._key(problem)}") or {}).get("case")
        by = f" by {judge[1]} {judge[2].name}" if judge else ""
        key = f"agrees {kernel.name} {json.dumps(case, sort_keys=True)}{by}"
        if case is None or self.verdicts.get(key) is not None:
            return self._refusal(kernel.name) or READY
        if key in self._untried:
            return self._untried[key]
        outcome = self.trial.check(kernel.name, case, (str(judge[0]), judge[2].name) if judge else None)
        if isinstance(outcome, Reason):
            return self._refuse(kernel.name, outcome, key)
        if outcome["difference"] is not None:
            return self._refuse(kernel.name, Reason("wrong_result", str(outcome["difference"])), key)
        self.verdicts.put(key, {})
        return READY

    def is_refused(self, kernel: str) -> bool:
        """Return whether ``kernel`` was refused by this object."""
        return kernel in self._refused

    def close(self) -> None:
        """End the child process."""
        self.trial.close()

    def _key(self, problem: Problem) -> str:
        """Return a problem as JSON, workers included: the question to the library here equals the one in the child."""
        if problem not in self._keys:
            self._keys[problem] = json.dumps({**problems.fields(problem), "workers": problem.workers})
        return self._keys[problem]

    def _refusal(self, kernel: str) -> Reason | None:
        """Return why ``kernel`` was refused, in this engine or, by the cache, in an earlier one."""
        known = self.verdicts.get(f"refused {kernel}")
        if kernel not in self._refused and known is not None:
            self._refused[kernel] = Reason(str(known.get("code")), str(known.get("text")))
        return self._refused.get(kernel)

    def _refuse(self, kernel: str, reason: Reason, question: str) -> Reason:
        """Note that ``kernel`` failed; where the engine itself did, only that ``question`` has no answer."""
        if not reason.is_fault:
            self._untried[question] = reason
            return reason
        self._refused[kernel] = reason
        if reason.code != "silent":  # a busy machine may be to blame
            self.verdicts.put(f"refused {kernel}", {"code": reason.code, "text": reason.text})
        return reason


class FirstUseChecks:
    """Makes the first-use checks of libraries."""

    def of_library(self, path: Path, sha256: str, reference: Path, reference_sha256: str, cpu: Cpu) -> FirstUse:
        """Return the check of the library at ``path``."""
        return FirstUse(path, sha256, reference, reference_sha256, cpu)
