"""The hook of this plugin."""

from __future__ import annotations

from typing import TYPE_CHECKING

from infeng_core.api import hookimpl

if TYPE_CHECKING:
    from infeng_bench.hookspecs import BenchVerb


@hookimpl(optionalhook=True)
def infeng_bench_verbs() -> dict[str, BenchVerb]:
    """Return the verb of `infeng bench`, whose module also draws the page of ``-o`` of other verbs."""
    from infeng_bench.hookspecs import BenchVerb

    help = "write a self-contained page of tables and charts from result files"
    return {"report": BenchVerb(help, "infeng_report.verb")}
