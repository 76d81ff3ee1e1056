"""Hooks of `infeng bench` that other plugins implement."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from infeng_core.api import hookspec

if TYPE_CHECKING:
    from infeng_bench.engine.work import Work
    from infeng_bench.http.server_process import ServerProcess
    from infeng_bench.kernels.oracles import Oracle
    from infeng_core.api.formats import QuantFormat


class BenchVerb(NamedTuple):
    """A verb of `infeng bench`.

    The module of the verb `report` also has ``page(found)``: the HTML of named results, for ``-o`` of the other verbs.
    """

    help: str
    module: str  # has ``configure(parser)`` and ``run(arguments)``; imported when the verb's arguments are parsed


class Peers(Protocol):
    """Other engines, each in an environment of its own."""

    @property
    def names(self) -> Sequence[str]:
        """The engines."""

    @property
    def parts(self) -> Sequence[str]:
        """The peers that implement a part of an engine only."""

    def compare(self, arguments: argparse.Namespace, works: Sequence[Work], pairs: int) -> int:
        """Measure works on the engines of ``--engines`` in turn; write, print and return the exit status."""

    def compare_taxes(self, arguments: argparse.Namespace, work: Work) -> int:
        """Measure the tax of adapters on the engines of ``--engines`` in turn; likewise."""

    def server(
        self, name: str, arguments: argparse.Namespace, adapters: Mapping[str, Path], places: int
    ) -> ServerProcess:
        """Start a peer's own server. adapters: PEFT directories by name. places: most requests at a time."""

    def versions(self, name: str) -> dict[str, str] | None:
        """Return the packages of a peer's environment with their versions; None if it is not installed."""

    def oracle(self, name: str, python: str | None, threads: int) -> Oracle:
        """Start another implementation of single ops; python: its interpreter, by default the environment's."""

    def number_type(self, part: str, quant: QuantFormat) -> str:
        """Return the number type of a part that is compared with a weight format; raises UsageError for none."""


OF_WHEELS = {
    **dict.fromkeys(("zipf", "compare", "peers"), "infeng-peers"),
    **dict.fromkeys(("simulate", "hybrid"), "infeng-simulate"),
    "report": "infeng-report",
}
"""Verbs that other wheels of the project bring, so that an error names the one to install."""


@hookspec
def infeng_bench_verbs(settings: Mapping[str, Any]) -> dict[str, BenchVerb]:  # type: ignore[empty-body]
    """Return further verbs by name: `infeng bench NAME`."""


@hookspec
def infeng_bench_peers(settings: Mapping[str, Any]) -> list[Peers]:  # type: ignore[empty-body]
    """Return other engines, which verbs measure beside this one; those of the first plugin count."""
