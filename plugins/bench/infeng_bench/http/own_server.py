"""`infeng serve` as a child process of a measurement: its command line and its requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from infeng_bench.http import completions
from infeng_bench.http.server_process import ServerProcess
from infeng_bench.load.requests import Job
from infeng_bench.peers.environment import INFENG
from infeng_core.api import cache_root

NAME = "served"  # the server's name in results
MODEL = "bench"  # the server's name of the base model
MARK = b'"finish_reason":null'  # in every frame with text and in no other

Keys = Callable[[Job], str]  # the API key of a request, or ""


def started(
    ours: Sequence[str],
    adapters: Mapping[str, Path],
    timeout: float,
    more: Sequence[str] = (),
    key: Keys = lambda job: "",
    *,
    streams: bool = True,
) -> ServerProcess:
    """Start the server. ours: model, threads, settings. more: further arguments. streams: whether answers stream."""
    loras = [word for name, path in adapters.items() for word in ("--lora", f"{name}={path}")]
    waits = ("--set", "scheduler.max_wait_ms=0")  # a closed loop sends all at once, and no request may be refused
    command = [*INFENG, "serve", *waits, *ours, *more, "--served-model-name", MODEL, *loras]
    wire = completions.wire(MODEL, key, streams=streams, mark=MARK)
    log = cache_root() / "bench" / "peers" / "infeng-serve.log"
    return ServerProcess(NAME, lambda port: [*command, "--port", str(port)], wire, log, timeout)
