"""Short scheduler slices: a thread that wakes with a short slice runs at once."""

from __future__ import annotations

import os
import platform
import sys

SHORT = 0.0003
"""Seconds: longer than one burst of a thread that mostly waits, and a tenth of the kernel's own slice."""

_SET_ATTRIBUTES = {"x86_64": 314, "aarch64": 274, "arm64": 274}
"""The number of sched_setattr(2) by machine; C libraries lack the call."""

_RESET_ON_FORK = 1
"""Threads and processes created by this one get the system's default slices."""


def shorten_slice(seconds: float = SHORT) -> bool:
    """Request slices of ``seconds`` (100 us to 100 ms) for the calling thread; return whether the system accepted.

    0 restores the default. Threads created by this one have the default.

    When the thread wakes, it runs before threads with longer slices that have had as much processor time; its share
    stays the same. Linux supports this from 6.12 on, without privileges; elsewhere nothing happens.
    """
    number = _SET_ATTRIBUTES.get(platform.machine())
    if sys.platform != "linux" or number is None:
        return False
    if os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK != os.SCHED_OTHER:
        return False
    import ctypes  # a slow import, needed only to serve or to measure

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
