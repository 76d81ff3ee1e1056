"""TTFT over HTTP of prompts whose prefix is computed, cached in memory, or saved on disk before a restart."""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

from infeng_bench.engine import prefix as engine_prefix
from infeng_bench.engine.prefix import FirstTokens
from infeng_bench.http import own_server
from infeng_bench.http.client import Client
from infeng_bench.http.overhead_figures import IN_PROCESS, SERVED
from infeng_bench.http.paired import server_of
from infeng_bench.http.traffic import Figures
from infeng_bench.load.serving import Job


def measured(arguments: argparse.Namespace) -> tuple[Figures, dict[str, Any]]:
    """Return each side's figures: TTFT with the prefix computed, in memory, and on disk after a restart."""
    load = arguments.load
    shared, tail, rounds = int(load["prompt"]), int(load["tail"]), int(load["rounds"])
    inside = engine_prefix.in_process(arguments, shared, tail, rounds, "serve-load")
    found = FirstTokens()
    with tempfile.TemporaryDirectory(prefix="infeng-prefix-") as folder:
        _asked(arguments, folder, lambda first: inside.prompts.compute(first, found))
        saved = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
        _asked(arguments, folder, lambda first: inside.prompts.restore(first, found))
    outside = engine_prefix.figures_of(found, inside.nbytes) | {"saved_bytes": saved}
    return {IN_PROCESS: engine_prefix.figures_of(inside.firsts, inside.nbytes), SERVED: outside}, {
        **inside.record,
        "load": str(load),
    }


def _asked(arguments: argparse.Namespace, folder: str, ask: Callable[[engine_prefix.First], None]) -> None:
    """Call ``ask`` with a function that measures one request on a server that saves prefixes in ``folder``."""
    server = server_of(arguments, {**engine_prefix.as_served(folder), "scheduler__step_ms": 0})
    try:
        server.ready()
        with server.awake(), Client(SERVED, server.address, arguments.timeout) as client:

            def first(ids: list[int]) -> tuple[float, float]:
                reply = client.whole(server.address.request(own_server.wire(), Job(0.0, ids, 4)))
                gaps = [late - early for early, late in pairwise(reply.pieces)]
                return reply.pieces[0] - reply.sent, statistics.median(gaps or [0.0])

            ask(first)
    finally:
        server.close()
