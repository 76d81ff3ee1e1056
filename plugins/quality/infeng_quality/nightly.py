"""`infeng quality nightly`: quality and throughput of several candidates, a history and a page.

A command for a timer: it appends to a history, writes the page and returns 1 if a gate is missed.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infeng_core.api import InfengError, PluginError, UsageError, say
from infeng_quality import compare, gates, models, page, results, texts

WORKS: tuple[tuple[str, ...], ...] = (
    ("decode", "--rows", "1", "--context", "256"),
    ("prefill", "--rows", "1", "--context", "512"),
)
"""Throughput measurements: verbs of infeng bench with their arguments."""

TIMEOUT = 3600

FAILURES = (InfengError, MemoryError, OSError)
"""Errors of one candidate after which the others are still measured."""


@dataclass(frozen=True)
class Candidate:
    """A model to measure and its formats."""

    reference: str
    """A model or a manifest."""
    format: str | None = None
    kv: str | None = None

    @staticmethod
    def parse(word: str, reference: str) -> Candidate:
        """Return the candidate of a word: a model, a manifest, or FORMAT[:KV] of the reference model."""
        if models.is_manifest(word) or "/" in word or Path(word).exists():
            return Candidate(word)
        format, _, kv = word.partition(":")
        return Candidate(reference, format or None, kv or None)

    def settings(self, threads: int | None) -> dict[str, object]:
        """Return its settings by their dotted names."""
        return {"model.format": self.format, "kv_cache.dtype": self.kv, "threads.count": threads}

    def arguments(self, reference: str, threads: int | None) -> list[str]:
        """Return its arguments for infeng bench. Raises InfengError."""
        found = ["--manifest", self.reference] if models.is_manifest(self.reference) else []
        found += ["--model", models.model_of(self.reference, reference)]
        found += ["--format", self.format] if self.format else []
        found += ["--set", f"kv_cache.dtype={self.kv}"] if self.kv else []
        return found + (["--threads", str(threads)] if threads else [])


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("reference", metavar="REF", help="the model, which is run at f32 for quality")
    help = "a model, a manifest.yaml, or FORMAT[:KV] of REF, such as int4-g64:f16"
    parser.add_argument("candidates", metavar="CANDIDATE", nargs="+", help=help)
    compare.add_text_options(parser)
    parser.add_argument("--gate", action="append", default=[], metavar="G,G", help="that every candidate has to keep")
    parser.add_argument("--history", required=True, metavar="FILE.jsonl", help="results are appended to it")
    parser.add_argument("--report", required=True, metavar="OUT.html", help="the page")
    parser.add_argument("--no-throughput", action="store_true", help="leave out infeng bench")
    parser.add_argument("-t", "--threads", type=int, metavar="N", help="worker threads (default: usable cores)")


def run(arguments: argparse.Namespace) -> int:
    """Measure all candidates; report a failed one and go on. Return 1 if one failed or missed a gate."""
    wanted = [gate for text in arguments.gate for gate in gates.parse(text)]
    results.require_places(arguments)
    sources = [texts.read(path) for path in arguments.texts]
    arguments.by_tensor = arguments.name = None
    found: list[dict[str, Any]] = []
    failed = False
    with models.open_reference(arguments.reference, arguments.threads) as reference:
        for word in arguments.candidates:
            arguments.name = word
            try:
                candidate = Candidate.parse(word, arguments.reference)
                settings = candidate.settings(arguments.threads)
                result = compare.measured(reference, candidate.reference, settings, sources, arguments)
            except FAILURES as error:
                say(f"{word}: {error}", to_stderr=True)
                failed = True
                continue
            compare.judge(result, wanted)
            found.append(result)
            results.append(arguments.history, result)
            say(*compare.table(result), *(f"  {gates.sentence(one)}" for one in result["gates"]))
    if not arguments.no_throughput:  # the reference's threads and memory are released
        for word in arguments.candidates:
            try:
                candidate = Candidate.parse(word, arguments.reference)
                measured = throughput(word, candidate.arguments(arguments.reference, arguments.threads))
            except FAILURES as error:
                say(f"{word}: {error}", to_stderr=True)
                failed = True
                continue
            for result in measured:
                results.append(arguments.history, result)
                say(f"{word}  {result['work']}  {result['tokens_per_s']['value']:.1f} tokens/s")
    history = results.history(arguments.history) if Path(arguments.history).exists() else []
    results.write_text(arguments.report, page.render(found, history))
    say(f"{arguments.report}: {len(found)} results")
    return int(failed or not all(gate["passed"] for one in found for gate in one["gates"]))


def throughput(name: str, model: Sequence[str]) -> list[dict[str, Any]]:
    """Return the results of ``WORKS``, each by a process of its own. Raises UsageError or PluginError."""
    beside = Path(sys.executable).with_name("infeng")
    program = str(beside) if beside.exists() else shutil.which("infeng")
    if program is None:
        raise UsageError("infeng", "the command is not found", "add its folder to PATH, or give --no-throughput")
    found = []
    for work in WORKS:
        command = [program, "bench", *work, *model, "--roofline", "none", "--json", "-"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
            made: Mapping[str, Any] = json.loads(done.stdout) if done.returncode == 0 else {}
        except (OSError, ValueError, subprocess.TimeoutExpired) as error:
            raise PluginError("infeng bench", str(error), "give --no-throughput to go without") from None
        if not made:
            said = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
            raise PluginError("infeng bench", said, "pip install infeng-bench, or give --no-throughput")
        for one in made["measurements"]:
            rate = one["tokens_per_s"]
            figures = {"value": rate["median"], "low": rate["min"], "high": rate["max"]}
            found.append(results.record("throughput", {"name": name, "work": one["work"], "tokens_per_s": figures}))
    return found
