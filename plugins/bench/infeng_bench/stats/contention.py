"""Whether a measurement had the machine for itself: how long threads that could run waited for a processor.

Where other programs run, an engine whose threads wait for each other loses far more than its share of time, and one
that spins the most: a ratio of two engines then says more about the neighbours than about either. So results carry what
was waited, and a ratio is not shown where that is more than a little; all figures stay in the result.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from infeng_bench.stats.summary import spread

MOST_WAITED = 0.05  # of the time in which an engine's threads ran or could have run: what they may wait for a processor
MOST_STOLEN = 0.05  # of all processors' time: what the host may give to others
LEAST_SURE = 2 / 3  # of a ratio: its lower bound may not be less. Pairs that differ more support no such ratio.

PROC = Path("/proc")
NANO = 1e-9


@dataclass(frozen=True)
class Waits:
    """What a process did, and waited for, in some time; seconds of all its threads together."""

    ran: float = 0.0
    waited: float = 0.0  # able to run, without a processor
    stolen: float = 0.0  # share of all processors' time that the host gave to others
    pressure: float = 0.0
    """Share of the time in which some program of this machine waited for a processor (Linux's PSI)."""

    @property
    def share(self) -> float:
        """The time waited over the time that the threads ran or could have run."""
        wanted = self.ran + self.waited
        return self.waited / wanted if wanted else 0.0


NOTHING = Waits()


@dataclass(frozen=True)
class Mark:
    """A moment from which waits count; a system that does not tell has waited for nothing."""

    pid: int | str = "self"
    threads: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    ticks: tuple[int, int] = (0, 0)
    pressure: int = 0
    at: float = 0.0

    @staticmethod
    def now(pid: int | str = "self") -> Mark:
        """Return this moment of a process."""
        return Mark(pid, threads(pid), steal_time(), _pressure(), time.monotonic())

    def waits(self) -> Waits:
        """Return what has been since. Threads that have ended meanwhile have taken theirs with them."""
        later = Mark.now(self.pid)
        known = {thread: self.threads.get(thread, (0, 0)) for thread in later.threads}
        ran, waited = (sum(later.threads[one][i] - known[one][i] for one in known) * NANO for i in (0, 1))
        stolen, every = (now - then for now, then in zip(later.ticks, self.ticks, strict=True))
        seconds = later.at - self.at
        pressed = (later.pressure - self.pressure) / 1e6 / seconds if seconds > 0 else 0.0
        return Waits(ran, waited, stolen / every if every else 0.0, min(1.0, pressed))


def threads(pid: int | str) -> dict[int, tuple[int, int]]:
    """Return (ran, waited) of each thread of a process in nanoseconds; nothing where the system does not say."""
    found = {}
    try:
        for folder in (PROC / str(pid) / "task").iterdir():
            try:
                ran, waited = (folder / "schedstat").read_text(encoding="ascii").split()[:2]
            except (OSError, ValueError):  # it has just ended
                continue
            found[int(folder.name)] = int(ran), int(waited)
    except OSError:
        return {}
    return found


def steal_time() -> tuple[int, int]:
    """Return (stolen, all) ticks of all processors since the start; (0, 0) where the system does not say."""
    try:
        ticks = [int(word) for word in (PROC / "stat").read_text(encoding="ascii").partition("\n")[0].split()[1:9]]
    except (OSError, ValueError):
        return 0, 0
    return (ticks[7], sum(ticks)) if len(ticks) == 8 else (0, 0)


def _pressure() -> int:
    """Return the microseconds in which some program waited for a processor, 0 where the system does not say."""
    try:
        first = (PROC / "pressure" / "cpu").read_text(encoding="ascii").partition("\n")[0]
        return int(first.rpartition("total=")[2])
    except (OSError, ValueError):
        return 0


def judged(
    waits: Mapping[str, Sequence[Waits]], ratios: Mapping[str, tuple[float, float]] | None = None
) -> dict[str, Any]:
    """Return what a result says of the time in which its figures were taken, and why no ratio is shown, if none is.

    waits: of each engine, of each round. ratios: each with its lower bound, by what they are ratios to.
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
    """Return why a result's, or a measurement's, ratios are not shown; "" where they are."""
    return str(result.get("contention", {}).get("withheld", ""))


def warnings(results: Iterable[Mapping[str, Any]], said: str = "") -> list[str]:
    """Return a line for people for each reason not to show ratios that ``said`` does not tell yet."""
    return [f"withheld: {why}" for why in dict.fromkeys(map(withheld, results)) if why and why not in said]
