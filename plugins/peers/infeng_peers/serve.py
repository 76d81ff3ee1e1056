"""The process in which a peer runs: ``PEER_PYTHON -P serve.py PEER.py MODEL --threads N --set KEY=VALUE``.

The peer's interpreter runs this file, so it imports only the standard library and NumPy. ``PEER.py`` is one of its
neighbours; its ``open_model(model, threads, options)`` returns an object with these members:

- ``vocab``: number of token ids.
- ``introduction()``: ``{"version", "kernels", "bytes_per_token", "details"}``.
- ``open(kind, rows, positions)``: allocate ``rows`` sequences of ``positions`` for "decode", "prefill" or "serve"; not
  timed.
- ``admit(slot, prompt, adapter)``: begin a sequence in a free slot; adapter is a name, or None for the base.
- ``advance(slots)``: run one step of these slots, or all steps until each new slot has a token; returns ``[(slot,
  token), ...]``.
- ``stop()``: drop the sequences; not timed.

A peer that serves requests with adapters also has the members that ``slots.py`` describes.

The protocol is one JSON object per line. The first line of output is ``{"ready": true, ...}``; then each line of input
gets one line of output, ``{"error": text}`` or:

- ``{"work": "decode:rows=1,context=1024", "seed": n}``: ``{"tokens_per_s", "seconds", "prefill_seconds", "tokens"}``.
  With ``"uses": [name, ...]``, row i uses adapter i mod their number; a step of an engine that cannot mix adapters is
  then one pass for each.
- ``{"adapters": [{"name", "path", "scale"}, ...]}``, which replace all adapters: ``{"load_ms": {name: ...}, "bytes":
  {name: ...}}``; bytes: of A and B in memory, as far as the peer's ``load_adapter`` returns them.
- ``{"serve": {"requests": [...], "places": n}}``: ``{"requests": [{"admitted", "times", "ids"}], "seconds",
  "tokens_per_s", "cpu_seconds", "peak_rss_bytes"}``.

The process ends with its input.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

STEPS = 32  # default of a work
FIRST_ID = 3  # ids below are special tokens in the tokenizers of Llamas


def parse_work(text: str) -> tuple[str, int, int, int]:
    """Read ``KIND:NAME=NUMBER,...`` as (kind, rows, context, steps); the client has checked it."""
    kind, _, rest = text.partition(":")
    numbers = {"rows": 1, "context": 1024, "steps": STEPS}
    numbers |= {name: int(value) for name, _, value in (part.partition("=") for part in rest.split(",") if part)}
    if kind not in ("decode", "prefill"):
        raise ValueError(f"this peer knows no work {kind!r}")
    return kind, numbers["rows"], numbers["context"], numbers["steps"]


def prompts_of(rows: int, context: int, seed: int, vocab: int) -> list[list[int]]:
    """Return the prompts of this seed, the same as of ``Work.prompts``."""
    first = min(FIRST_ID, vocab - 1)
    return [np.random.default_rng([seed, row]).integers(first, vocab, context).tolist() for row in range(rows)]


def perform(engine: Any, text: str, seed: int, uses: Sequence[str] = ()) -> dict[str, Any]:
    """Do one work and return its figures; the first token of a sequence belongs to prefill.

    uses: adapters that the rows use in turn.
    """
    kind, rows, context, steps = parse_work(text)
    prompts = prompts_of(rows, context, seed, engine.vocab)
    users = [uses[row % len(uses)] if uses else None for row in range(rows)]
    passes = passes_of(users, mixes=getattr(engine, "mixes", True))
    engine.open(kind, rows, context + (steps if kind == "decode" else 0) + 1)
    try:
        begin = time.perf_counter()
        for slot, prompt in enumerate(prompts):
            engine.admit(slot, prompt, users[slot])
        for slots in passes:
            engine.advance(slots)
        first = time.perf_counter()
        if kind == "prefill":
            seconds, tokens = first - begin, rows * context
        else:
            begin_decode = time.perf_counter()
            tokens = sum(len(engine.advance(slots)) for _ in range(steps) for slots in passes)
            seconds = time.perf_counter() - begin_decode
            if tokens != rows * steps:
                raise RuntimeError(f"{tokens} tokens of {steps} steps of {rows} rows: not every row decoded in each")
    finally:
        engine.stop()
    return {"tokens_per_s": tokens / seconds, "seconds": seconds, "prefill_seconds": first - begin, "tokens": tokens}


def passes_of(users: Sequence[str | None], *, mixes: bool) -> list[list[int]]:
    """Return the slots of each pass of a step. users: the adapter of each slot. mixes: one pass has several of them."""
    if mixes:
        return [list(range(len(users)))]
    return [[slot for slot, other in enumerate(users) if other == user] for user in dict.fromkeys(users)]


def answer_to(engine: Any, request: dict[str, Any], options: dict[str, str]) -> dict[str, Any]:
    """Return the answer to one line of input."""
    if "adapters" in request:
        return loaded(engine, request["adapters"])
    if "serve" in request:
        wanted = request["serve"]
        slots = load_file(Path(__file__).with_name("slots.py"), "infeng_slots")
        rule = options.get("turns", slots.RULES[0])
        served: dict[str, Any] = slots.serve(engine, wanted["requests"], wanted["places"], rule)
        return served
    return perform(engine, request["work"], request.get("seed", 0), request.get("uses", ()))


def loaded(engine: Any, wanted: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Replace the engine's adapters by ``wanted``; return each one's load time in milliseconds, and its bytes."""
    engine.drop_adapters()
    taken, sizes = {}, {}
    for adapter in wanted:
        begin = time.perf_counter()
        nbytes = engine.load_adapter(adapter["name"], adapter["path"], adapter["scale"])
        taken[adapter["name"]] = 1000 * (time.perf_counter() - begin)
        if nbytes is not None:
            sizes[adapter["name"]] = nbytes
    return {"load_ms": taken, "bytes": sizes}


def load_file(path: str | Path, name: str = "infeng_peer") -> Any:
    """Import a file under a name that hides no package of the peer's own."""
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> int:
    """Load the model, print the introduction and answer lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer")
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="settings")
    arguments = parser.parse_args()
    # Only answers go to standard output; other prints go to standard error.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(data: dict[str, Any]) -> None:
        print(json.dumps(data), file=answers, flush=True)

    peer = load_file(arguments.peer)
    options = peer.OPTIONS | dict(setting.split("=", 1) for setting in arguments.settings)
    try:
        engine = peer.open_model(arguments.model, arguments.threads, options)
        introduction = engine.introduction()
        introduction["details"] |= {"vocab": engine.vocab, "mixes": getattr(engine, "mixes", True), **options}
    except Exception as error:
        traceback.print_exc()
        say({"error": f"{type(error).__name__}: {error}"})
        return 1
    say({"ready": True, "engine": peer.NAME, **introduction})
    for line in sys.stdin:
        if not line.strip():
            continue
        try:
            answer = answer_to(engine, json.loads(line), options)
        except Exception as error:
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        say(answer)
    return 0


if __name__ == "__main__":
    sys.exit(main())
