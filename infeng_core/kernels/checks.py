"""The interface of what tries kernel libraries before the engine uses them; a wheel implements it."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from infeng_core._native import Kernel, Problem
from infeng_core.machine.cpu import Cpu
from infeng_core.plug.reason import Reason

Judge = tuple[Path, str, Kernel]
"""The plain kernel of an op that a library describes, with the path and the sha256 of its library."""

FAULTS = {
    "not_found": "missing_file",
    "bad_file": "not_a_library",
    "truncated": "not_a_library",
    "wrong_arch": "not_a_library",
    "dlopen_failed": "not_a_library",
    "missing_symbol": "missing_symbol",
    "abi_major": "abi_mismatch",
    "abi_minor": "abi_mismatch",
    "entry_threw": "crashed",
}
"""Reason codes for codes of NativeError; for any other code the library declined or described itself wrongly."""


class LibraryCheck(Protocol):
    """Tries one library and its kernels in another process, so that none of them harms the engine."""

    def opened(self) -> str | Reason:
        """Load the library; return the name that it gives itself, or why it must not be mapped."""

    def fits(self, kernel: Kernel, problem: Problem) -> Reason:
        """Return whether ``kernel`` accepts ``problem``: READY, DECLINES, or the fault that was found."""

    def agrees(self, kernel: Kernel, problem: Problem, judge: Judge | None) -> Reason:
        """Compare ``kernel`` with the reference, or with ``judge``, on a small random case like ``problem``.

        Returns READY, or the fault for which the kernel must not serve any problem. ``fits`` was READY.
        """

    def is_refused(self, kernel: str) -> bool:
        """Return whether a fault of the kernel of this name was found."""

    def close(self) -> None:
        """End the other process; the next question starts it again."""


class KernelCheck(Protocol):
    """Makes the checks of libraries."""

    def of_library(self, path: Path, sha256: str, reference: Path, reference_sha256: str, cpu: Cpu) -> LibraryCheck:
        """Return the check of the library at ``path``, whose kernels are compared with those of ``reference``."""
