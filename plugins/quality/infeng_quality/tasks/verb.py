"""`infeng quality tasks`: questions with known answers, for one model or for two models in pairs."""

from __future__ import annotations

import argparse
import math
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tqdm import tqdm

from infeng_core.api import UsageError, say
from infeng_quality import adapters, models, results
from infeng_quality.compare import positive
from infeng_quality.statistics import bootstrap, mcnemar, tost
from infeng_quality.tasks import sandbox
from infeng_quality.tasks.answering import Answered, answer
from infeng_quality.tasks.kinds import TASKS, Item, items, with_shots

MARGIN = 0.01


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("model", metavar="MODEL", help="directory, hub name, artifact or manifest.yaml")
    parser.add_argument("--task", required=True, choices=sorted(TASKS), help="the task of the data")
    parser.add_argument("--data", required=True, metavar="FILE", help="its .jsonl[.gz]")
    parser.add_argument("--limit", type=positive, metavar="N", help="the first N questions (default: all)")
    parser.add_argument("--shots", type=int, default=0, metavar="N", help="the first N, answered, precede each (0)")
    parser.add_argument("--against", metavar="REF", help="compare with this model, which is run at f32")
    models.add_reference_option(parser)
    help = "answer with this adapter, on both sides: PEFT directory, artifact, plugin's file or hub name"
    parser.add_argument("--lora", action="append", default=[], metavar="NAME=PATH[:SCALE]", help=help)
    parser.add_argument(
        "--margin", type=_margin, default=MARGIN, metavar="M", help=f"share of questions that may differ ({MARGIN:g})"
    )
    models.add_model_options(parser)
    parser.add_argument("--json", metavar="OUT", help="write the result with all answers; - is standard output")
    parser.add_argument("--history", metavar="FILE.jsonl", help="append the result")


def run(arguments: argparse.Namespace) -> int:
    """Answer, judge, print and write. Raises InfengError."""
    task = TASKS[arguments.task]
    results.require_places(arguments)
    adapter = _adapter(arguments)
    isolated = sandbox.run("").isolated if task.runs_code else None
    if isolated is False:
        say("warning: programs run with limits, but reach the network and your files: use a container", to_stderr=True)
    questions = with_shots(items(task, arguments.data, arguments.limit), max(0, arguments.shots))
    settings = models.candidate_settings(arguments)
    answered, facts = [], []
    references = [arguments.against] if arguments.against else []
    exact = {**models.REFERENCES[arguments.ref_format], "threads.count": arguments.threads}
    for name, given in [*((one, exact) for one in references), (arguments.model, settings)]:
        with models.open_model(name, given, arguments.against) as engine:
            facts.append(models.facts(engine, name))
            if adapter is not None:
                adapters.load(engine, adapter)
            with tqdm(total=2 * len(questions), desc=name, disable=None, file=sys.stderr, leave=False) as bar:
                answered.append(answer(engine, task, questions, bar.update, adapter and adapter.name))
    figures = summary(questions, answered[-1])
    if references:
        figures["paired"] = paired(answered[0], answered[1], arguments.margin)
        figures["reference"] = {**facts[0], "run_as": arguments.ref_format}
    if adapter is not None:
        figures["adapter"] = {"name": adapter.name, "adapter": adapter.path, "scale": adapter.scale}
    if isolated is not None:
        figures["isolated"] = isolated
    figures |= {"task": task.name, "shots": arguments.shots, "candidate": facts[-1], "name": arguments.model}
    result = results.record("tasks", figures)
    if arguments.json != "-":
        say(*table(result))
    if arguments.json:
        results.write(arguments.json, result)
    if arguments.history:
        results.append(arguments.history, result)
    return 0


def _adapter(arguments: argparse.Namespace) -> adapters.Wanted | None:
    """Return the adapter of ``--lora``, or None; raises UsageError for several, since all questions have one model."""
    found = adapters.wanted(arguments)
    if len(found) > 1:
        raise UsageError("--lora", f"{len(found)} adapters are given", "give one, and call it for each adapter")
    return found[0] if found else None


def summary(questions: Sequence[Item], answered: Answered) -> dict[str, Any]:
    """Return the figures of one model."""
    kept = answered.tokens > 0
    total = int(answered.tokens[kept].sum())
    return {
        "accuracy": wilson(int(answered.solved.sum()), len(questions)),
        "outcomes": dict(sorted(Counter(answered.reasons).items())),
        "questions": len(questions),
        "gold_nll": float(answered.nll[kept].sum() / total) if total else None,
        "gold_tokens": total,
        "items": [
            {"name": item.name, "reason": reason, "answer": text, "gold_nll": None if math.isnan(nll) else float(nll)}
            for item, reason, text, nll in zip(questions, answered.reasons, answered.texts, answered.nll, strict=True)
        ],
    }


def paired(first: Answered, second: Answered, margin: float) -> dict[str, Any]:
    """Compare two models on the same questions: McNemar, equivalence within a margin, nll of correct answers."""
    test, same = mcnemar(first.solved, second.solved), tost(first.solved, second.solved, margin)
    kept = (first.tokens > 0) & (second.tokens > 0)
    difference = None
    if kept.sum() > 1:
        sums = (second.nll - first.nll)[kept][:, None]
        difference = bootstrap(sums, first.tokens[kept].astype(np.float64))[0].to_dict()
    return {
        "reference_accuracy": wilson(int(first.solved.sum()), len(first.reasons)),
        "gained": test.gained,
        "lost": test.lost,
        "mcnemar_p": test.p,
        "difference": same.difference.to_dict(),
        "margin": margin,
        "tost_p": same.p,
        "verdict": "resolved" if same.is_resolved or test.p < 0.05 else "unresolved",
        "gold_nll_difference": difference,
    }


def wilson(solved: int, count: int) -> dict[str, float]:
    """Return the share ``solved / count`` with its 95% score interval (Wilson, 1927)."""
    z = 1.959963984540054
    share, wide = solved / count, z * z / count
    middle = (share + wide / 2) / (1 + wide)
    half = z / (1 + wide) * math.sqrt(share * (1 - share) / count + wide / (4 * count))
    return {"value": share, "low": max(0.0, middle - half), "high": min(1.0, middle + half)}


def table(result: Mapping[str, Any]) -> list[str]:
    """Return the printed lines."""
    share = result["accuracy"]
    lines = [
        f"{result['task']}, {result['questions']} questions{_with(result)}: {share['value']:.2%} solved "
        f"({share['low']:.2%} to {share['high']:.2%})",
        "  " + ", ".join(f"{reason} {count}" for reason, count in result["outcomes"].items()),
    ]
    if result["gold_nll"] is not None:
        lines.append(f"  right answers  nll {result['gold_nll']:.5f} a token, {result['gold_tokens']} tokens")
    if "paired" in result:
        lines += _pairs(result["paired"], result["reference"]["run_as"])
    return lines


def _with(result: Mapping[str, Any]) -> str:
    return f" with adapter {result['adapter']['name']}" if "adapter" in result else ""


def _pairs(paired: Mapping[str, Any], against: str) -> list[str]:
    difference, nll = paired["difference"], paired["gold_nll_difference"]
    reasons = {
        True: "the two differ (McNemar)",
        False: f"the two are alike within {paired['margin']:.1%} (TOST)",
    }
    said = reasons[paired["mcnemar_p"] < 0.05] if paired["verdict"] == "resolved" else "more questions are needed"
    lines = [
        f"  against {against:<6} {paired['gained']} gained, {paired['lost']} lost, "
        f"McNemar p {paired['mcnemar_p']:.3g}; "
        f"{difference['value']:+.2%} ({difference['low']:+.2%} to {difference['high']:+.2%}, 90%)",
        f"  {paired['verdict']}: {said}",
    ]
    if nll is not None:
        lines.append(f"  right answers  nll {nll['value']:+.5f} a token ({nll['low']:+.5f} to {nll['high']:+.5f})")
    return lines


def _margin(text: str) -> float:
    value = float(text)
    if not 0 < value < 1:
        raise UsageError(f"--margin {text}", "is no share", "give one between 0 and 1, such as 0.01")
    return value
