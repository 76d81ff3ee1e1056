"""The names that plugins may import from this wheel; everything else may change without notice."""

from infeng_inspect.case import OneOp
from infeng_inspect.comparison import first_difference, sequences, variants
from infeng_inspect.footprint import Footprint, HugePages, footprint, huge_pages, peak_rss
from infeng_inspect.judges import NoJudgeError
from infeng_inspect.lora import RandomAdapters
from infeng_inspect.machine import machine, memory, writable
from infeng_inspect.outline import Outline, by_format, shape_and_formats
from infeng_inspect.slices import shorten_slice
from infeng_inspect.steps import Sequences, asked
from infeng_inspect.verdicts import cache_dir as verdicts_folder

__all__ = [
    "Footprint", "HugePages", "NoJudgeError", "OneOp", "Outline", "RandomAdapters", "Sequences", "asked", "by_format",
    "first_difference", "footprint", "huge_pages", "machine", "memory", "peak_rss", "sequences", "shape_and_formats",
    "shorten_slice", "variants", "verdicts_folder", "writable",
]  # fmt: skip
