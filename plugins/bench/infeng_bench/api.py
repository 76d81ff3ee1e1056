"""Names for plugins that measure: readings in turn, the statistics of pairs, results and tables."""

from infeng_bench.kernels.programs import KernelProgram, Subject, pool, readings
from infeng_bench.load.texts import made_up
from infeng_bench.options import Column, columns, table
from infeng_bench.reports.results import record, require_places, write
from infeng_bench.stats.paired import lower_bound, ratios, upper_bound
from infeng_bench.stats.summary import spread

__all__ = [
    "Column", "KernelProgram", "Subject", "columns", "lower_bound", "made_up", "pool", "ratios", "readings", "record",
    "require_places", "spread", "table", "upper_bound", "write",
]  # fmt: skip
