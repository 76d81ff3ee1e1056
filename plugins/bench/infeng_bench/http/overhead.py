"""`infeng bench serve --http`: the engine in-process, the engine over HTTP and other servers, measured in turn."""

from __future__ import annotations

import argparse
import contextlib
import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from tqdm import tqdm

from infeng_bench import options
from infeng_bench.beside import peers
from infeng_bench.engine.command_line import make_room
from infeng_bench.engine.place import InProcess
from infeng_bench.engine.session import Session
from infeng_bench.http import overhead_figures
from infeng_bench.http.paired import PairedEngines, both
from infeng_bench.http.server_process import ServerProcess
from infeng_bench.load import load_options
from infeng_bench.load.kinds import Load
from infeng_bench.load.requests import Job, Served
from infeng_bench.load.traffic import draw
from infeng_bench.models import adapters
from infeng_bench.reports import results
from infeng_bench.reports.results import OURS
from infeng_core.api import UsageError

KIND = "serve-http"
PEERS = ("llama_cpp",)  # peers whose own server is measured

PAIRS, EACH, PROMPT, NEW, ALPHA = 10, 2, 16, 32, 1.3
CLIENTS = (1, 4, 16, 64)
WARM = 4  # new tokens of each client's request before the first round


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``--http``."""
    group = parser.add_argument_group("over HTTP")
    help = "the engine in-process against infeng serve: closed loops, or what --load says"
    group.add_argument("--http", action="store_true", help=help)
    options.add_pairs(group, PAIRS, "rounds kept of each", "pairs")
    options.add(group, "--each", options.positive, EACH, "N", "requests of each client in a round")
    options.add(group, "--prompt", options.positive, PROMPT, "N", "tokens of a prompt")
    options.add(group, "--new", options.positive, NEW, "N", "new tokens")
    help = "measure requests for N random adapters too, besides the base alone"
    group.add_argument("--adapters", type=options.natural, default=0, metavar="N", help=help)
    options.add(group, "--alpha", float, ALPHA, "A", "adapter k has weight 1/(k+1)^A; 0: in turn")
    options.add_engines(group, "whose servers are measured, see infeng bench peers", OURS)
    group.add_argument("--peer", choices=PEERS, help="another engine's server beside ours, as --engines")


class Side(Protocol):
    """An engine or a server."""

    @property
    def name(self) -> str:
        """Its name in results."""

    def serve(self, jobs: Sequence[Job], places: int) -> Served:
        """Answer ``jobs``, at most ``places`` at a time."""


def run(arguments: argparse.Namespace) -> int:
    """Measure, print and write; the JSON file is written after each number of clients."""
    begin = time.monotonic()
    clients = arguments.clients or list(CLIENTS)
    options.model_name(arguments)
    loads = {named: _load(arguments, named) for named in (0, arguments.adapters)}
    shape = arguments.synthetic or arguments.model
    loras = adapters.random_adapters(shape, arguments.adapters, arguments.rank, arguments.targets)
    make_room(arguments, max(clients))
    sides = 2 + bool(arguments.peer)
    bar = tqdm(total=len(clients) * len(loads) * sides * (arguments.pairs + 1), unit="round", disable=None)
    found: list[dict[str, Any]] = []
    result: dict[str, Any] = {}
    settings = {**load_options.AS_SERVED, "kv_cache__prefix": False}
    with both(arguments, settings, loras) as ours, bar:
        if arguments.prompt + arguments.new > ours.context:
            raise UsageError("--prompt", f"the model has {ours.context} positions", "give shorter requests")
        inside = InProcess(ours.session.engine)
        for count in clients:
            with _peer(arguments, loras, count) as others:
                for named, load in loads.items():
                    turns: list[Side] = [inside, ours.server, *others]
                    requests = functools.partial(_requests, load, count * arguments.each, arguments.seed, ours)
                    rounds = _rounds(turns, requests, count, arguments.pairs, bar)
                    found.append(overhead_figures.figures(count, named, rounds))
            result = _record(arguments, ours.session, found, time.monotonic() - begin)
            options.keep(result, arguments)
    shown = options.table(overhead_figures.TABLE, overhead_figures.lines(found))
    return options.deliver(result, arguments, options.columns(shown))


@contextlib.contextmanager
def _peer(arguments: argparse.Namespace, loras: Mapping[str, Path], places: int) -> Iterator[list[ServerProcess]]:
    """Start the peer's server with ``places`` slots; yield an empty list without --peer."""
    if not arguments.peer:
        yield []
        return
    server = peers().server(arguments.peer, arguments, loras, places)
    try:
        server.ready()
        yield [server]
    finally:
        server.close()


def _load(arguments: argparse.Namespace, adapters: int) -> Load:
    """Return the load of requests that come at once; adapters: how many there are, 0 for the base alone."""
    kind = f"zipf:alpha={arguments.alpha},adapters={adapters}," if adapters else "poisson:"
    return Load.parse(f"{kind}rate=inf,prompt={arguments.prompt},output={arguments.new}")


def _requests(load: Load, count: int, seed: int, ours: PairedEngines, number: int) -> list[Job]:
    """Return the requests of a round."""
    return list(draw(load, count, seed + number, ours.context).jobs(ours.vocab))


def _rounds(
    sides: Sequence[Side], requests: Callable[[int], list[Job]], clients: int, count: int, bar: tqdm[Any]
) -> overhead_figures.Rounds:
    """Serve each round's requests on all sides, A B C and then C B A, after short requests that warm up."""
    short = [replace(job, new=min(job.new, WARM)) for job in requests(0)[:clients]]
    for side in sides:
        side.serve(short, clients)
        bar.update()
    found: dict[str, list[Served]] = {side.name: [] for side in sides}
    for number in range(1, count + 1):
        jobs = requests(number)
        for side in sides if number % 2 else reversed(sides):
            found[side.name].append(side.serve(jobs, clients))
            bar.update()
    return found


def _record(
    arguments: argparse.Namespace, session: Session, found: list[dict[str, Any]], seconds: float
) -> dict[str, Any]:
    return results.record(
        KIND,
        {"measurements": list(found), "seconds_in_all": seconds},
        **session.facts(),
        seed=arguments.seed,
        rounds=arguments.pairs,
        requests_of_each_client=arguments.each,
        prompt_tokens=arguments.prompt,
        max_new_tokens=arguments.new,
        zipf_alpha=arguments.alpha if arguments.adapters else None,
        rank=arguments.rank if arguments.adapters else None,
        targets=arguments.targets if arguments.adapters else None,
        peer_versions=peers().versions(arguments.peer) if arguments.peer else None,
    )
