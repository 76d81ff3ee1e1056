"""Names for measuring and checking kernels: native objects, problems, the machine."""

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
from infeng_core.backends.native.executable import plan
from infeng_core.backends.native.outline import Outline, shape_and_formats
from infeng_core.kernels.check.case import OneOp
from infeng_core.kernels.check.comparison import first_difference, sequences, variants
from infeng_core.kernels.check.judges import NoJudgeError
from infeng_core.kernels.check.lora import RandomAdapters
from infeng_core.kernels.check.steps import Sequences, asked
from infeng_core.kernels.choice import Selector
from infeng_core.kernels.libraries import REFERENCE, plain_kernel
from infeng_core.kernels.problems import describe, is_gated, problem, row_ranges
from infeng_core.kernels.storages import A_FORMATS, a_form, shrink_needs
from infeng_core.machine import proc
from infeng_core.machine.cpu import NEEDS, Cpu, closure, detect
from infeng_core.machine.footprint import Footprint, HugePages, footprint, huge_pages, peak_rss
from infeng_core.machine.system import machine, memory

__all__ = [
    "A_FORMATS", "CACHE_FORMATS", "NEEDS", "REFERENCE", "WEIGHT_ACTS", "Cpu", "Footprint", "HugePages", "Kernel",
    "KvCache", "Library", "NoJudgeError", "OneOp", "Outline", "Pool", "Problem", "Program", "RandomAdapters",
    "Selector", "Sequences", "a_form", "asked", "closure", "describe", "detect", "first_difference", "footprint",
    "huge_pages", "is_gated", "machine", "memory", "open_library", "peak_rss", "plain_kernel", "plan", "problem",
    "proc", "row_ops", "row_ranges", "sequences", "shape_and_formats", "shrink_needs", "sub_grid", "variants",
]  # fmt: skip
