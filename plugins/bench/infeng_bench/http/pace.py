"""Inter-token latency beside the prefill of a long prompt, in-process and over HTTP."""

from __future__ import annotations

import argparse
from itertools import pairwise
from typing import Any

from infeng_bench.engine import pace as engine_pace
from infeng_bench.engine.pace import LEARNING, PromptBeside
from infeng_bench.http import own_server
from infeng_bench.http.client import Client, Reply
from infeng_bench.http.overhead_figures import IN_PROCESS, SERVED
from infeng_bench.http.paired import SIDES, PairedEngines, both
from infeng_bench.http.traffic import Figures
from infeng_bench.load.prompts import random_ids
from infeng_bench.load.serving import Job
from infeng_bench.peers import PeerError

SHORT = 16  # prompt tokens of the decoding sequences


def measured(arguments: argparse.Namespace) -> tuple[Figures, dict[str, Any]]:
    """Return each side's figures beside a long prompt, with and without a bound on the time of steps."""
    load = arguments.load
    rows, tokens, step = int(load["rows"]), int(load["prompt"]), int(load["step"])
    found: dict[str, dict[int, list[PromptBeside]]] = {side: {step: [], 0: []} for side in SIDES}
    record: dict[str, Any] = {}
    for number in range(int(load["rounds"])):
        for step_ms in (step, 0):
            settings = {"kv_cache__prefix": False, "scheduler__step_ms": step_ms}
            with both(arguments, settings) as sides:
                seed = arguments.seed + number
                found[IN_PROCESS][step_ms].append(engine_pace.beside(sides.engine, rows, tokens, seed))
                found[SERVED][step_ms].append(_beside(sides, rows, tokens, seed))
                record = sides.session.record("serve-load", {}, seed=arguments.seed, load=str(load))
    return {side: engine_pace.figures(one[step], one[0], tokens) for side, one in found.items()}, record


def _beside(sides: PairedEngines, rows: int, tokens: int, seed: int) -> PromptBeside:
    """Measure over HTTP what ``engine_pace.beside`` measures in-process."""

    def request(length: int, index: int, new: int) -> bytes:
        return asked(sides, random_ids(length, seed, index, sides.vocab), new)

    with sides.client() as client:
        client.whole(request(min(LEARNING, tokens), rows + 1, SHORT))
        decoding = [client.ask(request(SHORT, row, sides.context - SHORT)) for row in range(rows)]
        until_begun(client, decoding)
        begin, before = client.now(), sum(one.frames for one in decoding)
        prompt = client.ask(request(tokens, rows, 1))
        client.until(lambda: prompt.is_over)
        until_begun(client, [prompt])
        client.pump(0)  # tokens of the same step for the decoding sequences
        for one in decoding:
            client.drop(one)
    count = sum(one.frames for one in decoding) - before
    moments = [[*[t for t in one.pieces if t <= begin][-1:], *[t for t in one.pieces if t > begin]] for one in decoding]
    gaps = [late - early for each in moments for early, late in pairwise(each)]
    return PromptBeside(prompt.pieces[0] - begin, count, tuple(gaps))


def asked(sides: PairedEngines, prompt: list[int], new: int) -> bytes:
    """Return the bytes of a streaming request."""
    return sides.server.address.request(own_server.wire(), Job(0.0, prompt, new))


def until_begun(client: Client, replies: list[Reply]) -> None:
    """Wait until each answer has a token; raises PeerError if one is refused or ends without a token."""

    def are_begun() -> bool:
        if any(one.status not in (0, 200) or (one.is_over and not one.frames) for one in replies):
            said = next(one.tail for one in replies if not one.frames)
            raise PeerError(SERVED, f"a stream did not begin: {said.decode(errors='replace')!r}", "look at its log")
        return all(one.frames for one in replies)

    client.until(are_begun)
