"""The place and the locking of pages, as the kernel reports them, and refusals."""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from infeng_core import _native

MIB = 1 << 20
HUGE = 2 * MIB


def locked() -> int:
    """Return the bytes that this process has locked."""
    return int(re.search(r"VmLck:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) << 10


def policy(buffer) -> str:
    """Return the kernel's word for the placement of a buffer's first page: "default", "prefer:0"."""
    address = np.frombuffer(buffer, np.uint8).ctypes.data
    for line in Path("/proc/self/numa_maps").read_text().splitlines():
        begin, word = line.split()[:2]
        if int(begin, 16) == address:
            return word
    raise AssertionError("the mapping is not listed")


def may_lock(nbytes: int) -> bool:
    """Whether the system lets this process lock so many bytes more; the kernel is asked, not the limits."""
    libc, data = ctypes.CDLL(None, use_errno=True), mmap.mmap(-1, nbytes)
    view = (ctypes.c_char * nbytes).from_buffer(data)
    done = libc.mlock(ctypes.byref(view), ctypes.c_size_t(nbytes)) == 0
    if done:
        libc.munlock(ctypes.byref(view), ctypes.c_size_t(nbytes))
    return done


needs_locks = pytest.mark.skipif(
    sys.platform != "linux" or not may_lock(6 * HUGE),
    reason=f"no right to lock: RLIMIT_MEMLOCK is {resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]}",
)
needs_numa = pytest.mark.skipif(
    not Path("/proc/self/numa_maps").exists(), reason="this kernel was built without NUMA (no /proc/self/numa_maps)"
)


@needs_locks
def test_a_locked_arena_is_locked_as_long_as_it_lives():
    before = locked()
    arena = _native.Arena(HUGE + 1, pages=_native.Pages(lock=True))
    assert locked() - before == 2 * HUGE
    assert not np.frombuffer(arena, np.uint8).any()
    del arena
    assert locked() == before


@needs_locks
def test_small_arenas_lock_no_more_than_they_hold():
    before = locked()
    arenas = [_native.Arena(4096, huge_pages=False, pages=_native.Pages(lock=True)) for _ in range(8)]
    assert locked() - before == sum(arena.nbytes for arena in arenas) == 8 * 4096


@needs_locks
def test_a_cache_is_locked_and_zeroed():
    before = locked()
    sizes = {"layers": 2, "blocks": 8, "kv_heads": 2, "head_dim": 64}
    cache = _native.KvCache("int8", **sizes, pages=_native.Pages(lock=True))
    assert locked() - before >= cache.nbytes
    assert not cache.layer(1).any()


@needs_locks
def test_a_mapped_file_is_locked_until_it_is_unmapped(tmp_path):
    (tmp_path / "weights").write_bytes(b"x" * HUGE)
    before = locked()
    with (tmp_path / "weights").open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    _native.lock_memory(mapped)
    assert locked() - before == HUGE
    mapped.close()
    assert locked() == before


def test_nothing_is_locked_unasked():
    before = locked()
    arenas = [_native.Arena(HUGE), _native.Arena(HUGE, pages=_native.Pages())]
    assert locked() == before
    assert all(arena.place_error == 0 for arena in arenas)


REFUSED = """
import os, resource, sys
from infeng_core import _native
resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536))
if os.getuid() == 0:
    os.setuid(65534)  # root may lock without limit
try:
    _native.Arena(1 << 22, pages=_native.Pages(lock=True))
except _native.NativeError as error:
    print(error.code, error)
print(_native.Arena(1 << 22).nbytes)
"""


def test_a_refused_lock_is_an_error_and_the_process_goes_on():
    done = subprocess.run([sys.executable, "-P", "-c", REFUSED], capture_output=True, text=True, check=True)
    first, last = done.stdout.splitlines()
    assert first.startswith("lock_refused the system refuses to lock 4194304 bytes in memory: ")
    assert last == str(1 << 22)


@needs_numa
@pytest.mark.parametrize(("word", "kernel"), [("prefer", "prefer:0"), ("interleave", "interleave:0")])
def test_the_kernel_is_told_the_policy(word, kernel):
    arena = _native.Arena(8 * MIB, pages=_native.Pages(word, [0]))
    assert (arena.place_error, policy(arena)) == (0, kernel)
    data = np.frombuffer(arena, np.uint8)
    data[:] = 7
    assert data.min() == 7
    plain = _native.Arena(8 * MIB)
    np.frombuffer(plain, np.uint8)[:] = 7
    assert bytes(memoryview(plain)) == bytes(memoryview(arena))


@needs_numa
def test_without_a_policy_the_system_decides():
    arena = _native.Arena(8 * MIB, pages=_native.Pages("first-touch", [0]))
    assert policy(arena) == "default"


@needs_numa
def test_a_refused_policy_is_reported_and_the_memory_is_usable():
    missing = 1 + max(int(path.name[4:]) for path in Path("/sys/devices/system/node").glob("node[0-9]*"))
    arena = _native.Arena(HUGE, pages=_native.Pages("interleave", [missing]))
    assert os.strerror(arena.place_error) == "Invalid argument"
    np.frombuffer(arena, np.uint8)[:] = 1
    cache = _native.KvCache(
        "f32", layers=1, blocks=1, kv_heads=1, head_dim=64, pages=_native.Pages("prefer", [missing])
    )
    assert cache.place_error == arena.place_error


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("near",), "no placement of pages is called near"),
        (("prefer",), "needs NUMA nodes"),
        (("interleave", [-1]), "there is no NUMA node -1"),
        (("interleave", [1024]), "there is no NUMA node 1024"),
    ],
)
def test_impossible_placements_are_errors(arguments, text, expect):
    with expect("invalid_argument", text):
        _native.Pages(*arguments)


def test_pages_say_what_they_are():
    pages = _native.Pages("interleave", [0, 3], lock=True)
    assert (pages.policy, pages.nodes, pages.lock) == ("interleave", [0, 3], True)
