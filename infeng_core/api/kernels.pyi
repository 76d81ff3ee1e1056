"""Names for measuring and checking kernels: native objects, problems, the machine."""

from infeng_core._native import Kernel, KvCache, Library, Pool, Problem, Program
from infeng_core.backends.native.executable import plan
from infeng_core.backends.native.outline import Outline, shape_and_formats
from infeng_core.kernels.check.case import OneOp
from infeng_core.kernels.check.lora import A_FORMATS, RandomAdapters, a_form
from infeng_core.kernels.choice import Selector
from infeng_core.kernels.libraries import REFERENCE
from infeng_core.kernels.problems import describe, row_ranges
from infeng_core.machine import proc
from infeng_core.machine.cpu import NEEDS, Cpu, closure, detect
from infeng_core.machine.footprint import Footprint, HugePages, footprint, huge_pages, peak_rss
from infeng_core.machine.system import machine, memory

__all__ = [
    "A_FORMATS", "NEEDS", "REFERENCE", "Cpu", "Footprint", "HugePages", "Kernel", "KvCache", "Library", "OneOp",
    "Outline", "Pool", "Problem", "Program", "RandomAdapters", "Selector", "a_form", "closure", "describe", "detect",
    "footprint", "huge_pages", "machine", "memory", "peak_rss", "plan", "proc", "row_ranges", "shape_and_formats",
]  # fmt: skip
