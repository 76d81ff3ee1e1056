"""`infeng serve` as a child process of a measurement: its command line and its requests."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from infeng_bench.http.server_process import ServerProcess
from infeng_bench.http.wire import Wire
from infeng_bench.load.serving import Job
from infeng_bench.peers.environment import INFENG
from infeng_core.api import cache_root

NAME = "served"  # the server's name in results
MODEL = "bench"  # the server's name of the base model


def started(
    ours: Sequence[str], adapters: Mapping[str, Path], timeout: float, more: Sequence[str] = (), key: str = ""
) -> ServerProcess:
    """Start the server. ours: model, threads, settings. more: further arguments. key: API key of requests."""
    loras = [word for name, path in adapters.items() for word in ("--lora", f"{name}={path}")]
    waits = ("--set", "scheduler.max_wait_ms=0")  # a closed loop sends all at once, and no request may be refused
    command = [*INFENG, "serve", *waits, *ours, *more, "--served-model-name", MODEL, *loras]
    log = cache_root() / "bench" / "peers" / "infeng-serve.log"
    return ServerProcess(NAME, lambda port: [*command, "--port", str(port)], wire(key=key), log, timeout)


def wire(*, streams: bool = True, key: str = "") -> Wire:
    """Return the wire format of the server: OpenAI's completions with token ids as the prompt."""

    def body(job: Job) -> Mapping[str, Any]:
        streamed = {"stream": True, "stream_options": {"include_usage": True}} if streams else {}
        return {
            "model": job.adapter or MODEL,
            "prompt": list(job.prompt),
            "max_tokens": job.new,
            "temperature": 0.0,
            "ignore_eos": True,
            **streamed,
        }

    count = re.compile(rb'"completion_tokens":(\d+)')
    headers = f"Authorization: Bearer {key}\r\n" if key else ""
    return Wire("/v1/completions", body, b'"finish_reason":null', count, "/ready", headers)
