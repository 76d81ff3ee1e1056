"""llama.cpp's server: its command line and its requests. The installation of the peer ``llama_cpp`` builds it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from infeng_bench.http.wire import Count, Wire
from infeng_bench.load.requests import Job
from infeng_bench.processes import PeerError

CELL = 256  # positions: llama.cpp rounds a sequence's cache up to these


def program(environment: Path) -> Path:
    """Return the server's program in the peer's virtual environment; raises PeerError if it is missing."""
    found = sorted(environment.glob("lib/python*/site-packages/llama_cpp/lib/llama-server"))
    if not found:
        remedy = "run infeng bench peers install --force llama_cpp"
        raise PeerError("llama_cpp", "llama-server is not in its environment", remedy)
    return found[0]


def environ(program: Path) -> dict[str, str]:
    """Return the environment variables with the path of its libraries."""
    return {"LD_LIBRARY_PATH": str(program.parent)}


def command(
    program: Path, model: Path, port: int, *, threads: int, places: int, positions: int, adapters: Sequence[Path]
) -> list[str]:
    """Return the command line for ``places`` sequences of ``positions``, each with a cache of its own.

    Adapters are loaded and not applied: each request names its own. The prompt cache is off, as on our side, and flash
    attention is off, with which llama.cpp decodes fastest on CPUs.
    """
    context = places * -(-positions // CELL) * CELL
    line = [str(program), "-m", str(model), "--host", "127.0.0.1", "--port", str(port)]
    line += ["-t", str(threads), "-tb", str(threads), "-np", str(places), "-c", str(context)]
    line += ["-b", "2048", "-ub", "512", "-fa", "off", "--no-kv-unified", "--cache-ram", "0", "--fit", "off"]
    line += ["--log-verbosity", "1"]
    for path in adapters:
        line += ["--lora", str(path)]
    return [*line, "--lora-init-without-apply"] if adapters else line


def wire(adapters: Sequence[str]) -> Wire:
    """Return the wire format. adapters: names in the order of loading."""

    def body(job: Job) -> Mapping[str, Any]:
        asked: dict[str, Any] = {
            "prompt": list(job.prompt),
            "n_predict": job.new,
            "samplers": ["top_k"],
            "top_k": 1,  # greedy, without a sort of the vocabulary
            "ignore_eos": True,
            "cache_prompt": False,
            "stream": True,
        }
        if adapters:
            asked["lora"] = [{"id": k, "scale": float(name == job.adapter)} for k, name in enumerate(adapters)]
        return asked

    return Wire("/completion", body, b'"stop":false', _count, "/health")


def _count(event: Mapping[str, Any]) -> Count | None:
    return (int(event["tokens_predicted"]), 0) if event.get("stop") else None
