"""`infeng bench serve --http`: the engine in-process, the engine over HTTP and other servers, measured in turn."""

from __future__ import annotations

import argparse
import contextlib
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

from infeng_bench import options, peers
from infeng_bench.engine.place import IN_PROCESS
from infeng_bench.http import overhead_figures, own_server
from infeng_bench.http.overhead_figures import Round
from infeng_bench.http.server_process import ServerProcess
from infeng_bench.load.arrivals import Lengths
from infeng_bench.load.workload import Workload
from infeng_bench.models import adapters
from infeng_bench.peers import environment, lineup, llama_server, models
from infeng_bench.peers.process import EngineProcess
from infeng_bench.reports import results
from infeng_core.api import UsageError, cache_root

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
    help = "requests of each client in a round"
    group.add_argument("--each", type=options.positive, default=EACH, metavar="N", help=help)
    group.add_argument("--prompt", type=options.positive, default=PROMPT, metavar="N", help="tokens of a prompt")
    group.add_argument("--new", type=options.positive, default=NEW, metavar="N", help="new tokens")
    help = "measure requests for N random adapters too, besides the base alone"
    group.add_argument("--adapters", type=options.natural, default=0, metavar="N", help=help)
    help = "adapter k has weight 1/(k+1)^A; 0: in turn"
    group.add_argument("--alpha", type=float, default=ALPHA, metavar="A", help=help)
    options.add_engines(group, "whose servers are measured, see infeng bench peers", peers.OURS)
    group.add_argument("--peer", choices=PEERS, help="another engine's server beside ours, as --engines")


@dataclass(frozen=True)
class Setup:
    """The model, the adapters and the sizes with which each side starts."""

    ours: Sequence[str]  # arguments of both INF-ENG processes: model, threads, settings
    adapters: Mapping[str, Path]
    threads: int
    places: int  # the most clients
    positions: int  # the most positions of a request
    timeout: float
    source: Path | None  # the Hugging Face directory, for a peer
    format: str


def run(arguments: argparse.Namespace) -> int:
    """Measure, print and write; the JSON file is written after each number of clients."""
    begin = time.monotonic()
    clients = arguments.clients or list(CLIENTS)
    options.model_name(arguments)
    setup = _setup(arguments, max(clients))
    load = Workload(
        1, arguments.new, arguments.alpha, False, arguments.seed, math.inf, Lengths("uniform", *[arguments.prompt] * 2)
    )
    kinds = [(), tuple(setup.adapters)] if setup.adapters else [()]
    sides = 2 + bool(arguments.peer)
    bar = tqdm(total=len(clients) * len(kinds) * sides * (arguments.pairs + 1), unit="round", disable=None)
    found: list[dict[str, Any]] = []
    result: dict[str, Any] = {}
    with _ours(setup) as (engine, server), bar:
        details = engine.introduction["details"]
        if setup.positions > details["context"]:
            raise UsageError("--prompt", f"the model has {details['context']} positions", "give shorter requests")
        for count in clients:
            with _peer(arguments, setup, count) as others:
                for names in kinds:
                    mine = replace(load, requests=count * arguments.each)
                    turns: list[EngineProcess | ServerProcess] = [engine, server, *others]
                    rounds = _rounds(turns, mine, names, int(details["vocab"]), count, arguments.pairs, bar)
                    found.append(overhead_figures.figures(count, len(names), rounds))
            result = _record(arguments, setup, engine, found, time.monotonic() - begin)
            options.keep(result, arguments)
    shown = options.table(overhead_figures.TABLE, overhead_figures.lines(found))
    options.deliver(result, arguments, options.columns(shown))
    return 0


def _setup(arguments: argparse.Namespace, places: int) -> Setup:
    threads = options.threads(arguments)
    source = lineup.source(arguments) if arguments.synthetic or arguments.peer else None
    shape = arguments.synthetic or arguments.model
    random = adapters.random_adapters(shape, arguments.adapters, arguments.rank, arguments.targets)
    lineup.make_room(arguments, places, len(random))
    return Setup(
        lineup.own_arguments(arguments, source or Path(arguments.model), threads),
        random,
        threads,
        places,
        arguments.prompt + arguments.new,
        arguments.timeout,
        source,
        arguments.format or lineup.FORMAT,
    )


@contextlib.contextmanager
def _ours(setup: Setup) -> Iterator[tuple[EngineProcess, ServerProcess]]:
    """Load the engine twice with the same settings: in a worker process, and in a server."""
    logs = cache_root() / "bench" / "peers"
    worker = [sys.executable, "-P", "-m", "infeng_bench.worker", *setup.ours]
    with contextlib.ExitStack() as stack:
        engine = EngineProcess(IN_PROCESS, worker, logs / "infeng.log", setup.timeout)
        stack.callback(engine.close)
        engine.ready()
        if setup.adapters:
            engine.adapters([{"name": n, "path": str(p), "scale": 1.0} for n, p in setup.adapters.items()])
        more = ["--set", "kv_cache.prefix=false"]
        server = own_server.started(setup.ours, setup.adapters, setup.timeout, more)
        stack.callback(server.close)
        server.ready()
        yield engine, server


@contextlib.contextmanager
def _peer(arguments: argparse.Namespace, setup: Setup, places: int) -> Iterator[list[ServerProcess]]:
    """Start the peer's server with ``places`` slots; yield an empty list without --peer."""
    if not arguments.peer:
        yield []
        return
    assert setup.source is not None
    peer = peers.peer(arguments.peer)
    place = environment.Environment(peer)
    place.require()
    program = llama_server.program(place.folder)
    model = models.peer_model(peer, setup.source, setup.format)
    loras = [models.peer_adapter(peer, path, setup.source) for path in setup.adapters.values()]
    server = ServerProcess(
        arguments.peer,
        lambda port: llama_server.command(
            program, model, port, threads=setup.threads, places=places, positions=setup.positions, adapters=loras
        ),
        llama_server.wire(list(setup.adapters)),
        cache_root() / "bench" / "peers" / f"{arguments.peer}-server.log",
        setup.timeout,
        llama_server.environ(program),
    )
    try:
        server.ready()
        yield [server]
    finally:
        server.close()


def _rounds(
    sides: Sequence[EngineProcess | ServerProcess],
    load: Workload,
    names: Sequence[str],
    vocab: int,
    clients: int,
    count: int,
    bar: tqdm[Any],
) -> list[Round]:
    """Serve each round's requests on all sides, A B C and then C B A, after short requests that warm up."""
    positions = 1 << 30  # lengths are already checked
    short = [replace(job, new=min(job.new, WARM)) for job in load.jobs(0, names, vocab, positions)[:clients]]
    for side in sides:
        side.serve(short, clients)
        bar.update()
    found = []
    for number in range(1, count + 1):
        jobs = load.jobs(number, names, vocab, positions)
        served = {}
        for side in sides if number % 2 else reversed(sides):
            served[side.name] = side.serve(jobs, clients)
            bar.update()
        found.append(Round(served))
    return found


def _record(
    arguments: argparse.Namespace, setup: Setup, engine: EngineProcess, found: list[dict[str, Any]], seconds: float
) -> dict[str, Any]:
    told = engine.introduction
    peer = environment.Environment(peers.peer(arguments.peer)).record() if arguments.peer else None
    return results.record(
        KIND,
        {"measurements": list(found), "seconds_in_all": seconds},
        model=options.model_name(arguments),
        format=arguments.format or told["details"]["formats"][0],
        kv_dtype=told["details"]["kv_dtype"],
        kernels=told["kernels"],
        threads=setup.threads,
        seed=arguments.seed,
        rounds=arguments.pairs,
        requests_of_each_client=arguments.each,
        prompt_tokens=arguments.prompt,
        max_new_tokens=arguments.new,
        zipf_alpha=arguments.alpha if setup.adapters else None,
        rank=arguments.rank if setup.adapters else None,
        targets=arguments.targets if setup.adapters else None,
        peer_versions=peer and peer["versions"],
    )
