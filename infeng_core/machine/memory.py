"""The memory that this process may still take: limits of the machine and of every control group above it."""

from __future__ import annotations

from pathlib import Path

from infeng_core.errors import ResourceError
from infeng_core.machine.proc import sizes, text

MARGIN = 64 << 20  # growth of the process itself while it loads


def available_bytes(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Return the lesser of MemAvailable and the room in the tightest control group; None if neither is known."""
    machine = sizes(proc / "meminfo", available="MemAvailable").get("available")
    found = [machine, *_cgroup_rooms(proc / "self" / "cgroup", cgroup)]
    return min((value for value in found if value is not None), default=None)


def require(needed: int, what: str, available: int | None) -> None:
    """Raise ResourceError with needed and available bytes if ``needed`` and a margin do not fit."""
    if available is not None and needed + MARGIN > available:
        raise memory_shortage(needed, what, available)


def memory_shortage(needed: int, what: str, available: int | None) -> ResourceError:
    """Return the error for ``needed`` bytes that are not available."""
    why = f"needs {needed} bytes ({gigabytes(needed)})"
    if available is None:
        why += ", the system refuses them"
    else:
        why += f", {available} bytes ({gigabytes(available)}) are available"
    remedy = "free memory, use a smaller format (--format int4-p32), or map the file (--set model.load=mmap)"
    return ResourceError(what, why, remedy)


LOCK_REMEDY = "raise the limit of locked memory (ulimit -l, a service's LimitMEMLOCK), or set memory.lock to false"
"""The remedy if the system refuses to lock memory."""


def gigabytes(count: int) -> str:
    """Return a byte count in GB, to one digit after the point, or in MB when small."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def _cgroup_rooms(membership: Path, root: Path) -> list[int | None]:
    """Return the room left in this process's control group and in each one around it, version 1 and 2."""
    rooms: list[int | None] = []
    for line in text(membership).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base, limit, usage = root, "memory.max", "memory.current"
        elif "memory" in controllers.split(","):
            base, limit, usage = root / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        group = base / path.lstrip("/")
        for place in (group, *group.parents):
            rooms.append(_room(place, limit, usage))
            if place == base:
                break
    return rooms


def _room(group: Path, limit: str, usage: str) -> int | None:
    most, used = text(group / limit), text(group / usage)
    if not most.isdigit() or not used.isdigit():
        return None
    # File pages count as used, but the kernel reclaims inactive ones before it refuses memory.
    stat = dict(line.split()[:2] for line in text(group / "memory.stat").splitlines() if len(line.split()) == 2)
    reclaimable = int(stat.get("total_inactive_file", stat.get("inactive_file", "0")))
    return max(0, int(most) - int(used) + reclaimable)
