"""Names for measuring and checking kernels: native objects, problems, the machine."""

from infeng_core import _native as native
from infeng_core._native import (
    CACHE_FORMATS,
    Kernel,
    KvCache,
    Library,
    Pool,
    Problem,
    Program,
    open_library,
    row_ops,
    sub_grid,
)
from infeng_core._native import WEIGHT_FORMATS as WEIGHT_ACTS
from infeng_core.backends.native.binding import Binder, Fused
from infeng_core.backends.native.executable import plan
from infeng_core.kernels import problems
from infeng_core.kernels.checks import FAULTS, Judge, KernelCheck, LibraryCheck
from infeng_core.kernels.choice import Selector
from infeng_core.kernels.libraries import REFERENCE, plain_kernel
from infeng_core.kernels.problems import describe, is_gated, problem, row_ranges
from infeng_core.kernels.storages import A_FORMATS, INTEGERS, a_form, shrink_needs
from infeng_core.machine import proc
from infeng_core.machine.cpu import NEEDS, Cpu, closure, detect

__all__ = [
    "A_FORMATS", "CACHE_FORMATS", "FAULTS", "INTEGERS", "NEEDS", "REFERENCE", "WEIGHT_ACTS", "Binder", "Cpu", "Fused",
    "Judge", "Kernel", "KernelCheck", "KvCache", "Library", "LibraryCheck", "Pool", "Problem", "Program", "Selector",
    "a_form", "closure", "describe", "detect", "is_gated", "native", "open_library", "plain_kernel", "plan", "problem",
    "problems", "proc", "row_ops", "row_ranges", "shrink_needs", "sub_grid",
]  # fmt: skip
