"""Hardware counters of this process through Linux's ``perf_event_open``, where the kernel and the machine allow it.

Layouts and numbers are those of ``linux/perf_event.h``. Virtual machines often offer no counters; everything then says
"unavailable" and why.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from infeng_core.api.kernels import proc

Kind = tuple[int, int]
"""perf_event_attr's type and config."""

HARDWARE: Mapping[str, Kind] = {"cycles": (0, 0), "instructions": (0, 1), "llc_misses": (0, 3)}

PARANOID = "/proc/sys/kernel/perf_event_paranoid"

_SYSCALL = {"x86_64": 298, "aarch64": 241}
_ATTR_BYTES = 64  # the first version of the struct
_READ_TIMES = 1 | 2  # PERF_FORMAT_TOTAL_TIME_ENABLED, _RUNNING
_INHERIT, _NO_KERNEL, _NO_HYPERVISOR = 1 << 1, 1 << 5, 1 << 6
_CLOSE_ON_EXEC = 8


@dataclass(frozen=True, slots=True)
class Counts:
    """Counts in user space, all threads together; ``unavailable`` says why a counter is missing."""

    values: Mapping[str, int] = field(default_factory=dict)
    unavailable: Mapping[str, str] = field(default_factory=dict)


class Counters:
    """Counts events of all threads of this process, and of threads started later, from its creation on."""

    def __init__(self, kinds: Mapping[str, Kind] = HARDWARE) -> None:
        """Start counting; for an unavailable counter, keep the reason."""
        self._files: dict[str, list[int]] = {}
        self._unavailable: dict[str, str] = {}
        for name, kind in kinds.items():
            files: list[int] = []
            try:
                files.extend(open_event(kind, thread) for thread in _threads())
            except OSError as error:
                for file in files:
                    os.close(file)
                self._unavailable[name] = explain(error)
            else:
                self._files[name] = files
        self._before = {name: self._sum(files) for name, files in self._files.items()}

    def read(self) -> Counts:
        """Return the counts since the beginning."""
        values = {}
        for name, files in self._files.items():
            values[name] = self._sum(files) - self._before[name]
        return Counts(values, dict(self._unavailable))

    def close(self) -> None:
        """Release the counters; a second call does nothing."""
        for files in self._files.values():
            for file in files:
                os.close(file)
        self._files = {}

    @staticmethod
    def _sum(files: list[int]) -> int:
        total = 0
        for file in files:
            value, enabled, running = struct.unpack("QQQ", os.read(file, 24))
            # The kernel multiplexes counters if the processor has too few: each count is scaled to the whole time.
            total += value * enabled // running if running else 0
        return total


def open_event(kind: Kind, thread: int) -> int:
    """Return a file that counts ``kind`` in one thread, user space only; raises OSError as the system call fails."""
    number = _SYSCALL.get(platform.machine()) if platform.system() == "Linux" else None
    if number is None:
        raise OSError(errno.ENOSYS, "no perf_event_open here")
    # type, size, config, sample_period, sample_type, read_format, flags, and two fields that stay 0
    flags = _INHERIT | _NO_KERNEL | _NO_HYPERVISOR
    attr = struct.pack("IIQQQQQIIQ", kind[0], _ATTR_BYTES, kind[1], 0, 0, _READ_TIMES, flags, 0, 0, 0)
    libc = ctypes.CDLL(None, use_errno=True)
    file: int = libc.syscall(
        ctypes.c_long(number), ctypes.c_char_p(attr), ctypes.c_int(thread), ctypes.c_int(-1), ctypes.c_int(-1),
        ctypes.c_ulong(_CLOSE_ON_EXEC),
    )  # fmt: skip
    if file < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return file


def explain(error: OSError) -> str:
    """Return why ``perf_event_open`` failed, as a message for the user."""
    name = errno.errorcode.get(error.errno or 0, str(error.errno))
    if error.errno in (errno.ENOENT, errno.ENODEV, errno.EOPNOTSUPP):
        why = "this machine offers no such counter, as is common in virtual machines"
    elif error.errno in (errno.EACCES, errno.EPERM):
        why = f"not permitted: kernel.perf_event_paranoid is {proc.text(PARANOID) or 'unknown'}, 2 or less is needed"
    elif error.errno == errno.ENOSYS:
        why = "the system has no perf_event_open, or a sandbox forbids it"
    else:
        why = os.strerror(error.errno or 0)
    return f"{why} ({name})"


def _threads() -> list[int]:
    try:
        return [int(folder.name) for folder in Path("/proc/self/task").iterdir()]
    except OSError:
        return [0]  # the calling thread
