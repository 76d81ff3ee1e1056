"""The hooks of this plugin."""

from __future__ import annotations

from typing import TYPE_CHECKING

from infeng_core.api import hookimpl

if TYPE_CHECKING:
    from infeng_bench.hookspecs import BenchVerb, Peers


@hookimpl(optionalhook=True)
def infeng_bench_verbs() -> dict[str, BenchVerb]:
    """Return the verbs of `infeng bench`."""
    from infeng_bench.hookspecs import BenchVerb

    verbs = {
        "zipf": "measure requests with many adapters, popular ones and others, beside other engines",
        "compare": "measure engines side by side, interleaved, with ratios pair by pair",
        "peers": "install, list and remove other engines, each in an environment of its own",
    }
    return {name: BenchVerb(help, f"infeng_peers.verbs.{name}") for name, help in verbs.items()}


@hookimpl(optionalhook=True)
def infeng_bench_peers() -> list[Peers]:
    """Return the engines that verbs measure beside this one."""
    from infeng_peers.beside import Beside

    return [Beside()]
