"""Resources of the process under the names of Prometheus' client libraries; unavailable figures are left out."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path

from infeng_serve.observability.exposition import Exposition
from infeng_serve.observability.families import FAMILIES


def add_process(out: Exposition) -> None:
    """Add the families ``process_*``."""
    values: dict[str, float | None] = {
        "process_cpu_seconds_total": time.process_time(),
        "process_resident_memory_bytes": _resident(),
        "process_start_time_seconds": _START,
        "process_open_fds": _open_files(),
        "process_max_fds": float(resource.getrlimit(resource.RLIMIT_NOFILE)[0]),
    }
    for name, value in values.items():
        if value is not None:
            out.add(FAMILIES[name], ((), value))


def _resident() -> int | None:
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


def _open_files() -> int | None:
    try:
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208  # a Path for each would cost as much again
    except OSError:
        return None


def _started() -> float | None:
    """Return the Unix time of the process's start: the boot time plus the kernel's start time since boot."""
    try:
        since_boot = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
        return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + since_boot
    except (OSError, ValueError, IndexError, AttributeError):
        return None


def age() -> float:
    """Return the process's age in seconds, to some 10 ms; 0 if it is unknown."""
    return 0.0 if _START is None else max(0.0, time.time() - _START)


_START = _started()
