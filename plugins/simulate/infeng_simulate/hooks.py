"""The hook of this plugin."""

from __future__ import annotations

from typing import TYPE_CHECKING

from infeng_core.api import hookimpl

if TYPE_CHECKING:
    from infeng_bench.hookspecs import BenchVerb


@hookimpl(optionalhook=True)
def infeng_bench_verbs() -> dict[str, BenchVerb]:
    """Return the verbs of `infeng bench`."""
    from infeng_bench.hookspecs import BenchVerb

    verbs = {
        "simulate": "run the scheduler under traffic on a virtual clock, policy against policy",
        "hybrid": "simulate a mixture of experts on a CPU and a GPU together, by where its experts are computed",
    }
    return {name: BenchVerb(help, f"infeng_simulate.verbs.{name}") for name, help in verbs.items()}
