"""Contention: the time that runnable threads of a measurement waited for a core.

Beside other programs, an engine whose threads wait for each other loses far more than its share of time, and a spinning
engine loses most, so a ratio of two engines depends on the other programs more than on the engines. Results therefore
record the waits, and a ratio is withheld from tables and pages if waits are long; all figures stay in the result.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from infeng_bench.stats.summary import spread

MOST_WAITED = 0.05  # of the runnable time of an engine's threads: most that they may wait for a core
MOST_STOLEN = 0.05  # of all cores' time: most that the host may give to other machines
LEAST_SURE = 2 / 3  # least lower bound of a ratio, as a share of the ratio

PROC = Path("/proc")
NANO = 1e-9


@dataclass(frozen=True)
class Waits:
    """The run and wait times of a process in an interval, in seconds summed over its threads."""

    ran: float = 0.0
    waited: float = 0.0  # runnable, without a core
    stolen: float = 0.0  # share of all cores' time that the host gave to other machines
    pressure: float = 0.0  # share of the time in which some program of this machine waited for a core (Linux's PSI)

    @property
    def share(self) -> float:
        """The time waited over the time that the threads were runnable."""
        wanted = self.ran + self.waited
        return self.waited / wanted if wanted else 0.0


NOTHING = Waits()


@dataclass(frozen=True)
class Mark:
    """The beginning of an interval of waits. On a system that does not report them, waits are 0."""

    pid: int | str = "self"
    threads: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    ticks: tuple[int, int] = (0, 0)
    pressure: int = 0
    at: float = 0.0

    @staticmethod
    def now(pid: int | str = "self") -> Mark:
        """Return the present counters of a process."""
        return Mark(pid, threads(pid), steal_time(), _pressure(), time.monotonic())

    def waits(self) -> Waits:
        """Return the waits since this mark, without those of threads that have ended."""
        later = Mark.now(self.pid)
        known = {thread: self.threads.get(thread, (0, 0)) for thread in later.threads}
        ran, waited = (sum(later.threads[one][i] - known[one][i] for one in known) * NANO for i in (0, 1))
        stolen, every = (now - then for now, then in zip(later.ticks, self.ticks, strict=True))
        seconds = later.at - self.at
        pressed = (later.pressure - self.pressure) / 1e6 / seconds if seconds > 0 else 0.0
        return Waits(ran, waited, stolen / every if every else 0.0, min(1.0, pressed))


def threads(pid: int | str) -> dict[int, tuple[int, int]]:
    """Return (ran, waited) of each thread of a process in nanoseconds; {} if the system does not report them."""
    found = {}
    try:
        for folder in (PROC / str(pid) / "task").iterdir():
            try:
                ran, waited = (folder / "schedstat").read_text(encoding="ascii").split()[:2]
            except (OSError, ValueError):  # the thread has ended
                continue
            found[int(folder.name)] = int(ran), int(waited)
    except OSError:
        return {}
    return found


def steal_time() -> tuple[int, int]:
    """Return (stolen, all) ticks of all cores since the boot; (0, 0) if the system does not report them."""
    try:
        ticks = [int(word) for word in (PROC / "stat").read_text(encoding="ascii").partition("\n")[0].split()[1:9]]
    except (OSError, ValueError):
        return 0, 0
    return (ticks[7], sum(ticks)) if len(ticks) == 8 else (0, 0)


def _pressure() -> int:
    """Return the microseconds in which some program waited for a core; 0 if the system does not report them."""
    try:
        first = (PROC / "pressure" / "cpu").read_text(encoding="ascii").partition("\n")[0]
        return int(first.rpartition("total=")[2])
    except (OSError, ValueError):
        return 0


def judged(
    waits: Mapping[str, Sequence[Waits]], ratios: Mapping[str, tuple[float, float]] | None = None
) -> dict[str, Any]:
    """Return a result's figures of contention, and the reason to withhold its ratios, if there is one.

    waits: of each engine, of each round. ratios: a ratio and its lower bound, by the name of its denominator.
    """
    every = [one for several in waits.values() for one in several]
    stolen = median(one.stolen for one in every)
    shares = {name: [one.share for one in several] for name, several in waits.items()}
    reasons = [
        f"{name}'s threads waited {median(values):.0%} of their time for a processor, more than {MOST_WAITED:.0%}"
        for name, values in shares.items()
        if median(values) > MOST_WAITED
    ]
    if stolen > MOST_STOLEN:
        reasons.append(f"the host gave {stolen:.0%} of the processors' time to others, more than {MOST_STOLEN:.0%}")
    reasons += [
        f"{ratio:.2f} x {name} is not borne out by pairs that bound it by {low:.2f}"
        for name, (ratio, low) in (ratios or {}).items()
        if low < LEAST_SURE * ratio
    ]
    return {
        "wait_share": {name: spread(values) for name, values in shares.items()},
        "steal_share": stolen,
        "pressure_share": median(one.pressure for one in every),
        "most_wait_share": MOST_WAITED,
        "most_steal_share": MOST_STOLEN,
        "is_quiet": not reasons,
        **({"withheld": "; ".join(reasons)} if reasons else {}),
    }


def withheld(result: Mapping[str, Any]) -> str:
    """Return the reason why the ratios of a result or measurement are withheld, or ""."""
    return str(result.get("contention", {}).get("withheld", ""))


def warnings(results: Iterable[Mapping[str, Any]], said: str = "") -> list[str]:
    """Return a line for each reason to withhold ratios that the text ``said`` does not contain."""
    return [f"withheld: {why}" for why in dict.fromkeys(map(withheld, results)) if why and why not in said]
