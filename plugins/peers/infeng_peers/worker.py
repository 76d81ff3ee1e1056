"""INF-ENG as a process that measures on demand: ``python -m infeng_peers.worker MODEL --threads N``.

The protocol is one JSON object per line. The first line of output is ``{"ready": true, "engine": "infeng", "version",
"kernels", "bytes_per_token", "details"}``. Each line of input, ``{"work": "decode:rows=1,context=1024", "seed": n}``,
gets one line of output, ``{"tokens_per_s", "seconds", "prefill_seconds", "tokens", "step_ms"}`` or ``{"error": text}``;
the end of the input ends the process. ``peers/serve.py`` describes the lines for adapters and requests:
``{"adapters": [...]}``, ``{"work": ..., "uses": [...]}``, ``{"serve": {"requests": [...], "places": n}}``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any

from infeng_bench.engine.place import InProcess
from infeng_bench.engine.running import perform
from infeng_bench.engine.work import Work
from infeng_bench.models.token_costs import costs
from infeng_bench.reports import results
from infeng_bench.reports.machine import kernel_features
from infeng_bench.stats.summary import spread

from infeng_core import api
from infeng_core.api import InfengError, UsageError, add_config_options, config_from
from infeng_peers import messages
from infeng_peers.adapter_set import AdapterSet

if TYPE_CHECKING:
    from infeng_core.api import Engine


def main(argv: Sequence[str] | None = None) -> int:
    """Load the model, print the introduction and answer lines; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m infeng_peers.worker", description="measure INF-ENG on demand")
    parser.add_argument("model", metavar="MODEL", help="model directory or hub name")
    parser.add_argument("--threads", type=int, metavar="N", help="worker threads (default: usable cores)")
    parser.add_argument("--format", metavar="F", help="weight format (default: as the model directory is)")
    add_config_options(parser)
    arguments = parser.parse_args(argv)
    # Only answers go to standard output; other prints go to standard error.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)
        try:
            config = config_from(
                arguments,
                model__path=arguments.model,
                threads__count=arguments.threads,
                model__format=arguments.format,
                kv_cache__prefix=False,
            )
            from infeng_core.api import Engine

            with Engine(config=config) as engine:
                _say(answers, introduction(engine))
                serve(engine, sys.stdin, answers)
        except InfengError as error:
            _say(answers, {"error": str(error)})
            print(f"infeng: error: {error}", file=sys.stderr)
            return error.exit_status
    return 0


def introduction(engine: Engine) -> dict[str, Any]:
    """Return the first line: the engine's version, kernels, limits and costs per token."""
    config = engine.config
    cost = costs(engine.model, config.kv_cache.dtype)
    details = {
        "formats": sorted(set(engine.model.formats_used.values())),
        "kv_dtype": config.kv_cache.dtype,
        "weight_bytes": engine.model.nbytes,
        "kv_bytes_per_position": cost.kv_bytes,
        "macs_per_token": cost.macs_per_token,
        "block_macs": cost.block_macs,
        "head_macs": cost.head_macs,
        "attention_macs_per_position": cost.attention_macs,
        "expert_bytes": cost.expert_bytes,
        "expert_share": cost.share,
        "context": engine.limits.context,
        "max_rows": engine.limits.max_rows,
        "vocab": engine.model.config.vocab,
        "adapter_dtype": config.adapters.dtype,
        "speculation": config.speculation.use,
        "kernel_features": kernel_features(engine.selector, engine.bound()),
    }
    return {
        "ready": True,
        "engine": "infeng",
        "version": api.__version__,
        "kernels": results.kernels(engine.bound()),
        "bytes_per_token": cost.weight_bytes,
        "details": details,
    }


def serve(engine: Engine, requests: Iterable[str], answers: IO[str]) -> None:
    """Answer each line of ``requests``."""
    with contextlib.closing(AdapterSet(engine)) as holder:
        for line in requests:
            if not line.strip():
                continue
            try:
                request = _request(line)
                answer: dict[str, Any]
                if "adapters" in request:
                    answer = {"load_ms": holder.replace(request["adapters"]), "bytes": holder.sizes()}
                elif "serve" in request:
                    answer = served(engine, request["serve"])
                else:
                    work, uses = Work.parse(str(request["work"])), request.get("uses", [])
                    answer = measured(engine, work, int(request.get("seed", 0)), uses)
            except InfengError as error:
                answer = {"error": str(error)}
            _say(answers, answer)


def measured(engine: Engine, work: Work, seed: int, uses: Sequence[str] = ()) -> dict[str, Any]:
    """Do one work and return its figures. uses: loaded adapters that the rows use in turn."""
    timing = perform(engine, work, seed, uses)
    return {
        "tokens_per_s": timing.tokens_per_s,
        "seconds": timing.seconds,
        "prefill_seconds": timing.prefill_seconds,
        "tokens": timing.tokens,
        "step_ms": spread([1000 * seconds for seconds in timing.steps]),
    }


def served(engine: Engine, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Answer requests and return their traces; raises UsageError for a request of another form."""
    try:
        jobs = [messages.job_of(request) for request in wanted["requests"]]
        places = int(wanted["places"])
    except (KeyError, TypeError, ValueError) as error:
        remedy = 'send {"serve": {"requests": [{"at": 0, "prompt": [1, 2], "new": 3, "adapter": null}], "places": 4}}'
        raise UsageError("requests", f"not in the form that is expected ({error})", remedy) from error
    return messages.of_served(InProcess(engine).serve(jobs, places))


def _request(line: str) -> dict[str, Any]:
    remedy = 'send {"work": "decode:rows=1,context=1024", "seed": 0}'
    try:
        request = json.loads(line)
    except ValueError as error:
        raise UsageError("request", f"not JSON: {error}", remedy) from error
    known = ("work", "adapters", "serve")
    if not isinstance(request, dict) or not any(name in request for name in known):
        raise UsageError("request", "it names no work", remedy)
    if not isinstance(request.get("seed", 0), int):
        raise UsageError("request", "seed is not a whole number", remedy)
    uses = request.get("uses", [])
    if not isinstance(uses, list) or not all(isinstance(name, str) for name in uses):
        raise UsageError("request", "uses is not a list of adapters' names", remedy)
    return request


def _say(answers: IO[str], data: dict[str, Any]) -> None:
    print(json.dumps(data), file=answers, flush=True)


if __name__ == "__main__":
    sys.exit(main())
