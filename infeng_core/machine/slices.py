"""How long a thread may run before others get their turn: one that wakes with a short slice comes in at once."""

from __future__ import annotations

import os
import platform
import sys

SHORT = 0.0003
"""Seconds: longer than what a thread that mostly waits does in one go, a tenth of the kernel's own slice."""

_SET_ATTRIBUTES = {"x86_64": 314, "aarch64": 274, "arm64": 274}
"""sched_setattr(2) by machine: no C library has it."""

_RESET_ON_FORK = 1
"""Threads and processes that this one makes have the system's own slices."""


def shorten_slice(seconds: float = SHORT) -> bool:
    """Ask for slices of ``seconds`` (100 us to 100 ms) for the calling thread; return whether the system took that.

    0: as long as they usually are. Threads that this one makes have their usual ones.

    A thread that wakes then comes before those with longer slices that have had as much of the processor; its share
    stays what it was. Linux heeds it from 6.12 on, and needs no privilege for it; elsewhere nothing happens.
    """
    number = _SET_ATTRIBUTES.get(platform.machine())
    if sys.platform != "linux" or number is None:
        return False
    if os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK != os.SCHED_OTHER:
        return False
    import ctypes  # which takes a while, and only who serves or measures comes here

    class Attributes(ctypes.Structure):  # struct sched_attr, first version
        _fields_ = (
            ("size", ctypes.c_uint32),
            ("policy", ctypes.c_uint32),
            ("flags", ctypes.c_uint64),
            ("nice", ctypes.c_int32),
            ("priority", ctypes.c_uint32),
            ("runtime", ctypes.c_uint64),
            ("deadline", ctypes.c_uint64),
            ("period", ctypes.c_uint64),
        )

    nice = os.getpriority(os.PRIO_PROCESS, 0)  # of the thread, on Linux
    runtime = round(1e9 * seconds)
    wanted = Attributes(ctypes.sizeof(Attributes), os.SCHED_OTHER, _RESET_ON_FORK, nice, 0, runtime, 0, 0)
    return bool(ctypes.CDLL(None).syscall(number, 0, ctypes.byref(wanted), 0) == 0)
