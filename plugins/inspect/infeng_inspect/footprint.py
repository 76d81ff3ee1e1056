"""The memory of this process, as Linux's /proc tells it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from infeng_core.api.kernels import proc

PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Footprint:
    """The memory of this process in bytes; of pages shared between processes it counts its part."""

    anonymous: int
    """Anonymous memory: copied weights, cache, scratch, heap."""
    mapped: int
    """Pages of files: libraries, and weights if ``model.load`` is mmap."""
    peak: int
    """The approximate peak of both together, assuming the present amount of file pages."""

    @property
    def total(self) -> int:
        """Both together."""
        return self.anonymous + self.mapped


def footprint() -> Footprint | None:
    """Return the present memory of this process, or None if the system does not report it.

    An older Linux counts shared pages as this process's alone.
    """
    whole = proc.sizes(PROC / "self/status", anonymous="RssAnon", mapped="RssFile", peak="VmHWM")
    if len(whole) < 3:
        return None
    found = whole | proc.sizes(PROC / "self/smaps_rollup", anonymous="Pss_Anon", mapped="Pss_File")
    peak = whole["peak"] - whole["mapped"] + found["mapped"]
    return Footprint(found["anonymous"], found["mapped"], peak)


def peak_rss() -> int | None:
    """Return the peak memory of this process in bytes, or None if the system does not report it."""
    return proc.sizes(PROC / "self/status", peak="VmHWM").get("peak")


@dataclass(frozen=True, slots=True)
class HugePages:
    """The memory for which huge pages were requested: weights, cache and scratch; bytes."""

    resident: int
    huge: int

    @property
    def coverage(self) -> float | None:
        """The fraction that huge pages back; None if none were requested."""
        return self.huge / self.resident if self.resident else None


def huge_pages() -> HugePages | None:
    """Return how much of the memory that requested huge pages has them, or None if the system does not report it."""
    resident = huge = entry_resident = entry_huge = 0
    lines = proc.text(PROC / "self/smaps").splitlines()
    for line in lines:
        key, _, value = line.partition(":")
        if key == "Rss":
            entry_resident = _kilobytes(value)
        elif key == "AnonHugePages":
            entry_huge = _kilobytes(value)
        elif key == "VmFlags" and "hg" in value.split():  # madvise(MADV_HUGEPAGE)
            resident += entry_resident
            huge += entry_huge
    return HugePages(resident, huge) if any(line.startswith("VmFlags:") for line in lines) else None


def _kilobytes(text: str) -> int:
    return int(text.split()[0]) * 1024
