"""Scheduler slices: requested by one thread, and only for that thread."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
import threading

import pytest
from infeng_inspect.slices import shorten_slice

GET_ATTRIBUTES = {"x86_64": 315, "aarch64": 275}


def slice_ns() -> int:
    """Return the slice that the calling thread has, as the system tells it."""
    found = (ctypes.c_uint64 * 7)()
    number = GET_ATTRIBUTES[platform.machine()]
    assert ctypes.CDLL(None).syscall(number, 0, ctypes.byref(found), ctypes.sizeof(found), 0) == 0
    return int(found[3])


@pytest.mark.skipif(sys.platform != "linux" or platform.machine() not in GET_ATTRIBUTES, reason="needs Linux")
def test_a_thread_has_short_slices_until_it_has_its_usual_ones_and_its_children_never():
    seen: list[object] = []

    def child() -> None:
        seen.append(slice_ns())

    def work() -> None:
        usual, nice = slice_ns(), os.getpriority(os.PRIO_PROCESS, 0)
        if not shorten_slice(0.0005):
            seen.append("the system does not let it")
            return
        seen.extend([usual, slice_ns()])
        other = threading.Thread(target=child)
        other.start()
        other.join()
        assert shorten_slice(0.0)
        seen.extend([slice_ns(), os.getpriority(os.PRIO_PROCESS, 0) - nice])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if seen == ["the system does not let it"]:
        pytest.skip("sched_setattr is not allowed here")
    usual, short, of_child, again, change = seen
    if short == usual:
        pytest.skip("a kernel before 6.12")
    assert (short, of_child, again, change) == (500_000, usual, usual, 0)


def test_a_system_without_the_call_is_left_alone(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(platform, "machine", lambda: "abacus")
    assert shorten_slice() is False
