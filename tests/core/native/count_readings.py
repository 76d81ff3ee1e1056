"""Run by test_profile.py under count_clock.c: prints the clock readings of steps with and without profiling as JSON."""

import ctypes
import json
import sys

import numpy as np

from infeng_core import _native

counter, toy_path = sys.argv[1:]
readings = ctypes.CDLL(counter).readings
readings.restype = ctypes.c_long
kernel = {kernel.name: kernel for kernel in _native.open_library(toy_path).kernels}["add_one"]
NONE = np.zeros(0, np.int32)
OPS = 100


def per_step(threads: int, profiled: bool) -> float:
    """Return the readings of one step of OPS equal ops; waiting threads sleep at once, so they read no clock."""
    program = _native.Program(_native.Pool(threads, spin_us=0), max_rows=8, max_samples=0, max_segments=1, context=8)
    x, y = program.buffer(8192), program.buffer(8192)
    for _ in range(OPS):
        program.epilogue([(8, kernel)], x, 8192, y, [])
    program.finish()
    if profiled:
        program.profile(True)
    batch = (np.zeros(8, np.int32), np.arange(8, dtype=np.int32), np.zeros((0, 4), np.int32), NONE, NONE)
    program.run(*batch)
    before = readings()
    for _ in range(10):
        program.run(*batch)
    return (readings() - before) / 10


print(json.dumps({f"{state} {threads}": per_step(threads, state == "on")
                  for threads in (1, 2) for state in ("off", "on")}))  # fmt: skip
