"""`infeng quality REF CANDIDATE`: compare a model with its reference, token by token."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from tqdm import tqdm

from infeng_core.api import Engine, UsageError, say
from infeng_quality import adapters, by_tensor, gates, models, page, results, texts
from infeng_quality.gates import Gate
from infeng_quality.greedy import divergence
from infeng_quality.scoring import Scores
from infeng_quality.statistics import RESAMPLES
from infeng_quality.teacher import Teacher
from infeng_quality.texts import Text, Window

CONTEXT = 512
WORST = 20
FEW_BLOCKS = 20
SHOWN = 160
"""Characters of a document's beginning in a result."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("reference", metavar="REF", help="the model, which is run at f32: directory or hub name")
    parser.add_argument(
        "candidate", metavar="CANDIDATE", help="what is compared: directory, hub name, artifact or manifest.yaml"
    )
    models.add_model_options(parser)
    models.add_reference_option(parser)
    adapters.add_option(parser)
    add_text_options(parser)
    parser.add_argument(
        "--by-tensor",
        nargs="?",
        const="group",
        choices=("group", "each"),
        help="also what if only these tensors were quantized: the same of all layers together, or each",
    )
    help = f"tokens that each of these is measured on ({by_tensor.TOKENS})"
    parser.add_argument("--by-tensor-tokens", type=positive, default=by_tensor.TOKENS, metavar="N", help=help)
    parser.add_argument(
        "--gate", action="append", default=[], metavar="G,G", help="such as 'ppl_ratio<=1.008,kl<=0.02,top1>=0.94'"
    )
    parser.add_argument("--name", metavar="NAME", help="what the candidate is called in reports (default: its format)")
    parser.add_argument("--json", metavar="OUT", help="write the result; - is standard output")
    parser.add_argument("--report", metavar="OUT.html", help="write a page of figures and charts")
    parser.add_argument("--history", metavar="FILE.jsonl", help="append the result; the page then charts all of them")


def add_text_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of texts, windows and the bootstrap."""
    parser.add_argument(
        "--texts", action="append", required=True, metavar="FILE", help="text or .jsonl[.gz] of documents; repeats"
    )
    parser.add_argument("--tokens", type=positive, metavar="N", help="at most so many tokens (default: all)")
    parser.add_argument("--context", type=positive, default=CONTEXT, metavar="N", help=f"of a window ({CONTEXT})")
    parser.add_argument(
        "--resamples", type=positive, default=RESAMPLES, metavar="N", help=f"of the bootstrap ({RESAMPLES})"
    )
    parser.add_argument("--seed", type=natural, default=0, metavar="N", help="of the bootstrap (0)")


def positive(text: str) -> int:
    """Read an integer above 0."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return number


def natural(text: str) -> int:
    """Read an integer of at least 0."""
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text} is below 0")
    return number


def run(arguments: argparse.Namespace) -> int:
    """Measure, print and write; return 1 if a gate is missed. Raises InfengError."""
    wanted = [gate for text in arguments.gate for gate in gates.parse(text)]  # raises before the measurement
    results.require_places(arguments)
    adapters.wanted(arguments)
    sources = [texts.read(path) for path in arguments.texts]
    with models.open_reference(arguments.reference, arguments.threads, arguments.ref_format) as reference:
        result = measured(reference, arguments.candidate, models.candidate_settings(arguments), sources, arguments)
    judge(result, wanted)
    deliver(result, arguments)
    return 0 if all(one["passed"] for one in judged(result)) else 1


def judged(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the outcomes of the gates: those of the model, then those of each adapter, with its name."""
    found = [*result["gates"]]
    for one in result.get("adapters", []):
        found += [{**gate, "adapter": one["name"]} for gate in one["gates"]]
    return found


def measured(
    reference: Engine,
    candidate: str,
    settings: Mapping[str, object],
    sources: Sequence[Text],
    arguments: argparse.Namespace,
) -> dict[str, Any]:
    """Compare one candidate with a loaded reference and return the result. Raises InfengError."""
    if arguments.context < 2:
        raise UsageError("--context", "a window of one token predicts nothing", "give 2 or more")
    with models.open_candidate(candidate, arguments.reference, settings) as other:
        models.check_alike(reference, other)
        windows = models.tokenized([reference, other], sources, arguments.context, arguments.tokens)
        ours, theirs = (Teacher(engine.executable, engine.limits) for engine in (reference, other))
        total = sum(window.predicted for window in windows)
        with tqdm(total=total, unit="token", desc="reading", disable=None, file=sys.stderr, leave=False) as bar:
            scores = Scores.of(ours, theirs, windows, bar.update)
        figures = scores.figures(arguments.resamples, arguments.seed)
        figures["bytes"], figures["reference_bytes"] = other.model.nbytes, reference.model.nbytes
        figures["reference"] = {**models.facts(reference, arguments.reference), "run_as": run_as(arguments)}
        figures["candidate"] = models.facts(other, candidate)
        figures["name"] = arguments.name or label(figures["candidate"])
        figures["texts"] = described(sources, windows)
        figures["context"] = arguments.context
        figures["greedy"] = divergence(reference, other, windows)
        figures["worst_documents"] = worst(scores, sources)
        if named := adapters.wanted(arguments):
            figures["adapters"] = [adapters.compared(reference, other, one, windows, arguments) for one in named]
        if arguments.by_tensor:
            each, part = arguments.by_tensor == "each", texts.first_tokens(windows, arguments.by_tensor_tokens)
            count = by_tensor.count(reference, other, each) * sum(window.predicted for window in part)
            with tqdm(total=count, unit="token", desc="by tensor", disable=None, file=sys.stderr, leave=False) as bar:
                figures["by_tensor"] = by_tensor.by_tensor(reference, other, part, each, bar.update)
            figures["by_tensor_tokens"] = sum(window.predicted for window in part)
    return results.record("quality", figures)


def judge(result: dict[str, Any], wanted: Sequence[Gate]) -> None:
    """Add the outcomes of the gates to a result, and those of figures that adapters have to each adapter."""
    result["gates"] = [gate.judge(result) for gate in wanted]
    for one in result.get("adapters", []):
        one["gates"] = [gate.judge(one) for gate in wanted if gate.figure in gates.OF_TOKENS]


def run_as(arguments: argparse.Namespace) -> str:
    """Return the format in which the reference runs."""
    return str(getattr(arguments, "ref_format", "f32"))


def deliver(result: Mapping[str, Any], arguments: argparse.Namespace) -> None:
    """Print and write a result."""
    if arguments.json != "-":
        say(*table(result))
    if said := [*(gates.sentence(one) for one in judged(result)), *notes(result)]:
        say(*said, to_stderr=True)
    if arguments.json:
        results.write(arguments.json, result)
    if arguments.history:
        results.append(arguments.history, result)
    if arguments.report:
        history = results.history(arguments.history) if arguments.history else []
        results.write_text(arguments.report, page.render([result], history))


def label(facts: Mapping[str, Any]) -> str:
    """Return a candidate's default name: the format of most of its bytes, and its cache format."""
    sizes = facts["bytes_by_format"]
    return f"{max(sizes, key=sizes.__getitem__)}, cache {facts['kv_dtype']}"


def described(sources: Sequence[Text], windows: Sequence[Window]) -> list[dict[str, Any]]:
    """Return name, digest, documents and tokens of each text."""
    found = []
    for number, source in enumerate(sources):
        own = [window for window in windows if window.text == number]
        tokens, documents = sum(window.predicted for window in own), len({window.document for window in own})
        found.append({"name": source.name, "sha256": source.sha256, "documents": documents, "tokens": tokens})
    return found


def worst(scores: Scores, sources: Sequence[Text]) -> list[dict[str, Any]]:
    """Return the windows with the largest mean KL."""
    found = []
    for index in scores.worst(WORST):
        window, (_, difference, kl, same) = scores.windows[index], scores.sums[index].tolist()
        source, tokens = sources[window.text], window.predicted
        found.append(
            {
                "text": source.name,
                "document": window.document,
                "part": window.part,
                "tokens": tokens,
                "kl": kl / tokens,
                "nll_difference": difference / tokens,
                "top1": same / tokens,
                "beginning": source.documents[window.document].strip()[:SHOWN],
            }
        )
    return found


def notes(result: Mapping[str, Any]) -> list[str]:
    """Return warnings about the figures."""
    if result["blocks"] < FEW_BLOCKS:
        return [f"note: intervals from {result['blocks']} blocks of documents are rough: give more text"]
    return []


def table(result: Mapping[str, Any]) -> list[str]:
    """Return the printed lines."""
    ratio, kl, top = result["ppl_ratio"], result["kl"], result["top1_interval"]
    bounds, greedy, candidate = result["kl_interval"], result["greedy"], result["candidate"]
    size = f"{result['bytes'] / 1e6:.1f} MB of {result['reference_bytes'] / 1e6:.1f} MB"
    lines = [
        f"{result['name']} against {result['reference']['run_as']}: {result['tokens']} tokens, "
        f"{result['documents']} documents, {result['blocks']} blocks",
        f"  perplexity   {ratio['value']:.5f} times ({ratio['low']:.5f} to {ratio['high']:.5f})",
        f"  KL           {kl['mean']:.4g} ({bounds['low']:.4g} to {bounds['high']:.4g}), "
        f"median {kl['median']:.3g}, 99% {kl['p99']:.3g}, largest {kl['max']:.3g}",
        f"  top 1        {result['top1']:.2%} the same ({top['low']:.2%} to {top['high']:.2%})",
        f"  bytes        {size}, {candidate['bits_per_weight']:.2f} bits a weight, cache {candidate['kv_dtype']}",
    ]
    if greedy["prompts"]:
        lines.append(
            f"  greedy       first difference at token {greedy['median_first_difference']:g} of {greedy['tokens']} "
            f"(median of {greedy['prompts']}), {greedy['identical']:.0%} the same"
        )
    for one in result.get("adapters", []):
        lines += adapters.lines(one)
    for line in result.get("by_tensor", []):
        one = line["kl"]
        lines.append(
            f"  only {line['tensor']:24} {line['format']:10} "
            f"KL {one['value']:.3g} ({one['low']:.3g} to {one['high']:.3g})"
        )
    return lines
