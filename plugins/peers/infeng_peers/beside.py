"""The peers as `infeng bench` asks for them: comparisons, a server, oracles."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from infeng_core.api import UsageError, cache_root
from infeng_peers import known

if TYPE_CHECKING:
    from infeng_bench.engine.work import Work
    from infeng_bench.http.server_process import ServerProcess

    from infeng_core.api.formats import QuantFormat
    from infeng_peers.oracles import Oracle


class Beside:
    """All known peers; each method imports what it needs."""

    @property
    def names(self) -> Sequence[str]:
        """The engines."""
        return known.NAMES

    @property
    def parts(self) -> Sequence[str]:
        """The peers that implement a part of an engine only."""
        return known.PARTS

    def compare(self, arguments: argparse.Namespace, works: Sequence[Work], pairs: int) -> int:
        """Measure works on the engines of ``--engines`` in turn; write, print and return the exit status."""
        from infeng_peers.verbs import compare

        return compare.against(arguments, works, pairs)

    def compare_taxes(self, arguments: argparse.Namespace, work: Work) -> int:
        """Measure the tax of adapters on the engines of ``--engines`` in turn; likewise."""
        from infeng_peers.verbs import lora_taxes

        return lora_taxes.run(arguments, work)

    def server(
        self, name: str, arguments: argparse.Namespace, adapters: Mapping[str, Path], places: int
    ) -> ServerProcess:
        """Start llama.cpp's server. adapters: PEFT directories by name. places: most requests at a time.

        Raises PeerError.
        """
        from infeng_bench import options
        from infeng_bench.engine.command_line import FORMAT
        from infeng_bench.http.server_process import ServerProcess

        from infeng_peers import exports, lineup, llama_server
        from infeng_peers.environment import Environment

        one = known.peer(name)
        place = Environment(one)
        place.require()
        program, source = llama_server.program(place.folder), lineup.source(arguments)
        model = exports.peer_model(one, source, arguments.format or FORMAT)
        given = {
            "threads": options.threads(arguments),
            "places": places,
            "positions": arguments.prompt + arguments.new,
            "adapters": [exports.peer_adapter(one, path, source) for path in adapters.values()],
        }
        return ServerProcess(
            name,
            lambda port: llama_server.command(program, model, port, **given),
            llama_server.wire(list(adapters)),
            cache_root() / "bench" / "peers" / f"{name}-server.log",
            arguments.timeout,
            llama_server.environ(program),
        )

    def versions(self, name: str) -> dict[str, str] | None:
        """Return the packages of a peer's environment with their versions; None if it is not installed."""
        from infeng_peers.environment import Environment

        record = Environment(known.peer(name)).record()
        return record and record["versions"]

    def oracle(self, name: str, python: str | None, threads: int) -> Oracle:
        """Start another implementation of single ops; python: its interpreter, by default the environment's."""
        from infeng_peers.oracles import Oracle

        return Oracle(name, python, threads)

    def number_type(self, part: str, quant: QuantFormat) -> str:
        """Return the number type of a part that is compared with a weight format; raises UsageError for none."""
        formats = known.peer(part).FORMATS
        if (kind := formats.get(quant.stored)) is None:
            remedy = f"use one of {', '.join(formats)}"
            raise UsageError(part, f"it has nothing that stands against {quant.name}", remedy)
        return kind
