"""Run by test_profile.py: one step while reading the time stamp counter, clocks included, ends the process."""

import ctypes
import sys

import numpy as np

from infeng_core import _native

PR_SET_TSC, PR_TSC_ENABLE, PR_TSC_SIGSEGV = 26, 1, 2  # linux/prctl.h

library, state = sys.argv[1:]
prctl = ctypes.CDLL(None).prctl
kernel = {kernel.name: kernel for kernel in _native.open_library(library).kernels}["add_one"]
program = _native.Program(_native.Pool(1), max_rows=8, max_samples=0, max_segments=1, context=8)
x, y = program.buffer(8192), program.buffer(8192)
program.epilogue([(8, kernel)], x, 8192, y, [])
program.finish()
program.profile(state == "on")
none = np.zeros(0, np.int32)
batch = (np.zeros(8, np.int32), np.arange(8, dtype=np.int32), np.zeros((0, 4), np.int32), none, none)
program.run(*batch)
prctl(PR_SET_TSC, PR_TSC_SIGSEGV)
program.run(*batch)
prctl(PR_SET_TSC, PR_TSC_ENABLE)
