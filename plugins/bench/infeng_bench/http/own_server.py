"""`infeng serve` as a child process of a measurement: how it is started, and how it is asked."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from infeng_bench.http.closed_loop import Wire
from infeng_bench.http.server_process import ServerProcess
from infeng_bench.load.serving import Job
from infeng_core.api import cache_root

NAME = "served"  # what results call it
MODEL = "bench"  # what it calls the base model


def started(
    ours: Sequence[str], adapters: Mapping[str, Path], timeout: float, more: Sequence[str] = (), key: str = ""
) -> ServerProcess:
    """Start our server. ours: model, threads, settings. more: further arguments. key: which ``wire`` sends."""
    infeng = [sys.executable, "-P", "-c", "import sys; from infeng_core.cli import main; sys.exit(main())", "serve"]
    loras = [word for name, path in adapters.items() for word in ("--lora", f"{name}={path}")]
    waits = ("--set", "scheduler.max_wait_ms=0")  # a closed loop comes all at once, and no request is to be refused
    command = [*infeng, *waits, *ours, *more, "--served-model-name", MODEL, *loras]
    log = cache_root() / "bench" / "peers" / "infeng-serve.log"
    return ServerProcess(NAME, lambda port: [*command, "--port", str(port)], wire(key=key), log, timeout)


def wire(*, streams: bool = True, key: str = "") -> Wire:
    """Return how our server is asked: as OpenAI's clients ask, with token ids."""

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
