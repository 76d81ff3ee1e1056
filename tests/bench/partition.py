"""One engine on all cores against two engines that share them: prompts on some cores, decoding rows on the others.

usage: python tests/bench/partition.py MODEL [--seconds S] [--rounds N] [--rows R] [--prompt P] [--prompt-cores C]
       python tests/bench/partition.py --predict CORES [--rows R]

Prompts of P tokens come one after the other, while R sequences decode. Prints a line of JSON for each round and
arrangement: tokens of prompts a second, tokens decoded a second, and the median and 99th percentile of the time between
two tokens in milliseconds. Rounds of all arrangements alternate.

With --predict nothing runs: the rates follow from the bytes and products of TinyLlama-1.1B in int4-g64 and a machine of
so many cores (``CORE``, ``MEMORY``). A step takes the longer of its products' time and its bytes' time; rows of prompts
that join a step of decoding rows read no weights of their own.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from typing import Any

from infeng_core.api import Engine, SamplingParams, Stream, load_config

STEP_MS = (50, 100, 200)
WARM_UP = 3.0
CONTEXT = 2048
"""Positions of a sequence that decodes; it begins again with a short prompt at the end."""

SHORT = 256

WEIGHTS, PRODUCTS = 0.549e9, 0.97e9
"""Bytes of a step and multiply-adds of a row: TinyLlama-1.1B, int4-g64."""

CORE = (216e9, 17.5e9)
"""int8 multiply-adds and bytes a second of one core."""

MEMORY = {2: 34e9, 16: 200e9, 64: 460e9}
"""Bytes a second of all cores together, by their number: a small virtual machine, 8 and 12 channels of DDR5."""

CHUNK = 512
"""Rows of a step with prompts alone."""


class Load:
    """What one engine does: prompts, decoding rows, or both."""

    def __init__(self, engine: Engine, rows: int, prompt: int) -> None:
        self.engine, self.rows, self.prompt = engine, rows, prompt
        self._random = random.Random(0)
        self._decoding: list[Stream] = []
        self._prompts: list[Stream] = []
        self._last: dict[int, float] = {}
        self.gaps: list[float] = []
        self.prompts = self.tokens = 0

    def run(self, until: float) -> None:
        """Step until the time of ``time.time``, counting."""
        while time.time() < until:
            self._submit()
            self.engine.step()
            self._count(time.perf_counter())

    def restart(self) -> None:
        self.gaps, self.prompts, self.tokens = [], 0, 0

    def _ids(self, count: int) -> list[int]:
        vocab = self.engine.model.config.vocab
        return [self._random.randrange(vocab) for _ in range(count)]

    def _submit(self) -> None:
        def greedy(new: int) -> SamplingParams:
            return SamplingParams(temperature=0.0, max_tokens=new, ignore_eos=True)

        while len(self._decoding) < self.rows:
            self._decoding.append(self.engine.submit(self._ids(SHORT), greedy(CONTEXT - SHORT - 1)))
        while self.prompt and not self._prompts:
            self._prompts.append(self.engine.submit(self._ids(self.prompt), greedy(1)))

    def _count(self, now: float) -> None:
        for stream in self._decoding:
            new = sum(len(event.token_ids) for event in stream.pending())
            if new:
                if (last := self._last.get(id(stream))) is not None:
                    self.gaps.append(now - last)
                self._last[id(stream)] = now
                self.tokens += new
        for stream in [one for one in self._decoding if one.finished]:
            self._decoding.remove(stream)
            self._last.pop(id(stream), None)
        self.prompts += self.prompt * sum(one.finished for one in self._prompts)
        self._prompts = [one for one in self._prompts if not one.finished]


def work(arguments: argparse.Namespace) -> None:
    """Run one engine in this process and print its figures."""
    overrides = {
        "model.path": arguments.model,
        "model.context": CONTEXT,
        "threads.count": len(os.sched_getaffinity(0)),
        "kv_cache.prefix": False,
        "scheduler.step_ms": arguments.step_ms,
    }
    with Engine(config=load_config(overrides=overrides)) as engine:
        load = Load(engine, arguments.rows, arguments.prompt)
        print("ready", flush=True)
        begin = float(sys.stdin.readline())
        load.run(begin + WARM_UP)
        load.restart()
        load.run(begin + WARM_UP + arguments.seconds)
    gaps = sorted(load.gaps)
    figures = {"prompt_tokens_per_s": load.prompts / arguments.seconds}
    figures["decode_tokens_per_s"] = load.tokens / arguments.seconds
    if gaps:
        figures |= {"median_ms": 1000 * gaps[len(gaps) // 2], "p99_ms": 1000 * gaps[int(0.99 * len(gaps))]}
    print(json.dumps(figures), flush=True)


def together(arguments: argparse.Namespace, parts: list[tuple[list[int], int, int]], step_ms: int) -> dict[str, Any]:
    """Run engines at once, each on its CPUs with so many rows that decode and prompts of so many tokens."""
    processes = []
    for cpus, rows, prompt in parts:
        command = [sys.executable, "-P", __file__, arguments.model, "--worker", f"--rows={rows}", f"--prompt={prompt}"]
        command += [f"--seconds={arguments.seconds}", f"--step-ms={step_ms}"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, cpus)  # which the child inherits
        processes.append(subprocess.Popen(command, **pipes))  # type: ignore[call-overload]
        os.sched_setaffinity(0, before)
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    begin = time.time() + 0.2
    for process in processes:
        process.stdin.write(f"{begin}\n")
        process.stdin.flush()
    figures = [json.loads(process.communicate()[0]) for process in processes]
    return {name: max(one.get(name, 0.0) for one in figures) for name in {key for one in figures for key in one}}


def predict(cores: int, rows: int) -> None:
    """Print the rates of one engine with steps of several lengths, and of splits of the cores."""
    (products, bytes_each), memory = CORE, MEMORY[cores]

    def seconds(count: int, own: int, others: float = 0.0) -> float:
        """Of a step with ``count`` rows on ``own`` cores, beside cores that read ``others`` bytes a second."""
        return max(count * PRODUCTS / (own * products), WEIGHTS / min(own * bytes_each, memory - others))

    alone = seconds(rows, cores)
    for factor in (1.25, 1.5, 2.0, 4.0):
        step = factor * alone
        prompts = cores * products / PRODUCTS - rows / step
        told = f"{rows / step:7.0f} decoded/s, {prompts:7.0f} of prompts/s"
        print(f"one engine, steps of {1000 * step:5.1f} ms: {told}")
    for own in sorted({max(1, cores * quarters // 4) for quarters in (1, 2, 3)} - {cores}):
        prefill = seconds(CHUNK, own)
        decode = seconds(rows, cores - own, WEIGHTS / prefill)
        print(
            f"split, {own} cores for prompts: {1000 * decode:5.1f} ms, {rows / decode:7.0f} decoded/s,"
            f" {CHUNK / prefill:7.0f} of prompts/s"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--predict", type=int, choices=MEMORY, metavar="CORES")
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--prompt", type=int, default=1024)
    parser.add_argument("--prompt-cores", type=int, default=1)
    parser.add_argument("--step-ms", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.predict:
        predict(arguments.predict, arguments.rows)
    elif arguments.model is None:
        parser.error("give a model, or --predict")
    elif arguments.worker:
        work(arguments)
    else:
        compare(arguments)


def compare(arguments: argparse.Namespace) -> None:
    """Measure all arrangements in turn."""
    cpus = sorted(os.sched_getaffinity(0))
    own, others = cpus[: arguments.prompt_cores], cpus[arguments.prompt_cores :]
    for number in range(arguments.rounds):
        for step_ms in (*STEP_MS, None):
            if step_ms is None:
                parts = [(own, 0, arguments.prompt), (others, arguments.rows, 0)]
            else:
                parts = [(cpus, arguments.rows, arguments.prompt)]
            name = "split" if step_ms is None else f"one engine, step_ms {step_ms}"
            figures = together(arguments, parts, step_ms or 0)
            print(json.dumps({"round": number, "arrangement": name, **figures}), flush=True)


if __name__ == "__main__":
    main()
