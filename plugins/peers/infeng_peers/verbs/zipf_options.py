"""The arguments and the printed tables of `infeng bench zipf`."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from infeng_bench import beside, options
from infeng_bench.options import Column
from infeng_bench.reports import results
from infeng_bench.reports.results import OURS
from infeng_bench.stats.contention import withheld

from infeng_core.api import UsageError, unknown_key_remedy
from infeng_peers import exports
from infeng_peers.adapter_comparison import VARIANTS

NEW = 48
LATENCIES = tuple(
    Column(f"{name} ms" if kind == "median" else "p99", f"{kind}_{name}_ms", ".1f")
    for name in ("ttft", "tpot", "e2el")
    for kind in ("median", "p99")
)
TABLE = (
    Column("", "whose"),
    Column("requests/s", "request_throughput", ".2f"),
    Column("new tokens/s", "output_throughput", ".1f"),
    Column("all tokens/s", "total_token_throughput", ".1f"),
    *LATENCIES,
    Column("swap ms", "adapter_swap_ms", ".1f"),
)
OF_ADAPTER = (Column("requests", "requests"), Column("new tokens", "output_tokens"), *LATENCIES)


def configure(parser: argparse.ArgumentParser) -> None:
    options.add_model(parser, "directory, GGUF or hub name")
    _add_adapters(parser)
    _add_requests(parser)
    group = parser.add_argument_group("measurement")
    options.add_engines(group, "in turn, ratios are A/B", OURS)
    options.add(group, "--warmup", options.natural, 1, "N", "rounds before those kept")
    options.add_pairs(group, 3, "rounds kept", "iters")
    help = "in turn with the same requests all on one adapter (single), or without (base)"
    group.add_argument("--against", type=options.words, default=[], metavar="K,K", help=help)
    options.add(group, "--sweep", sweep, None, "S", "such as 'adapters=1,2,4,8,16;rank=8,16,32,64': each with each")
    options.add_output(parser)
    group = parser.add_argument_group("more output")
    options.add(group, "--metrics-out", str, None, "OUT", "as --json, or as --csv if it ends in .csv")
    group.add_argument("--profile", action="store_true", help="show the figures of each adapter's requests")


def _add_adapters(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("adapters")
    help = "a PEFT directory or a GGUF; repeats"
    group.add_argument("--adapter", type=_adapter, action="append", metavar="NAME=PATH", help=help)
    options.add(group, "--adapters", options.positive, 4, "N", "or so many random ones")
    options.add_adapters(group, _ranks)
    options.add(group, "--lora-scale", float, 1.0, "X", "strength of all adapters")
    options.add(group, "--n-ctx", options.positive, None, "N", "most positions of a request (default: the model's)")


def _add_requests(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("requests")
    options.add(group, "--num-requests", options.positive, 16, "N", "in a round")
    options.add(group, "--zipf-alpha", float, 1.3, "A", "adapter k weighs 1/(k+1)^A; 0: in turn")
    group.add_argument("--include-base", action="store_true", help="the base model is one more choice")
    options.add_seed(group, "everything drawn")
    options.add(group, "--concurrency", options.positive, 4, "N", "most in flight")
    options.add(group, "--max-new-tokens", options.positive, None, "N", f"of each (default: {NEW}; a trace's own)")
    help = "random:LENGTH, humaneval, gsm8k, specbench or a FILE of JSON or plain lines"
    group.add_argument("--prompts", default="random:128", metavar="P", help=help)
    options.add(group, "--data", str, None, "DIR", "where humaneval, gsm8k and specbench lie ($INFENG_BENCH_DATA)")
    help = "requests a second, Poisson (default: the next when one has gone)"
    group.add_argument("--rate", type=options.rate, metavar="R", help=help)
    options.add(group, "--trace", str, None, "CSV", "arrivals and lengths from a trace, such as Azure's")
    options.add(group, "--speed", options.rate, 1.0, "X", "of the trace: 2 is twice as fast")


def check(arguments: argparse.Namespace) -> None:
    """Raise UsageError for contradicting arguments; turn ``arguments.adapter`` into a mapping."""
    given = arguments.adapter or []
    names = [name for name, _ in given]
    if len(set(names)) != len(names):
        raise UsageError("--adapter", "a name is given twice", "give each adapter a name of its own")
    if arguments.sweep and given:
        raise UsageError("--sweep", "it makes random adapters", "leave --adapter out")
    if arguments.trace and arguments.rate is not None:
        raise UsageError("--trace", "it tells when requests come", "leave --rate out")
    if not math.isfinite(arguments.lora_scale) or not math.isfinite(arguments.zipf_alpha):
        raise UsageError("--lora-scale, --zipf-alpha", "not finite", "give numbers such as 1.3")
    for kind in arguments.against:
        if kind not in VARIANTS[1:]:
            raise UsageError(f"--against {kind!r}", "unknown", unknown_key_remedy(kind, VARIANTS[1:]))
    for _, path in given if beside.engines(arguments.engines) != [OURS] else ():
        if not (exports.is_gguf(path) or (path / "adapter_config.json").is_file()):
            remedy = "give a PEFT directory or a GGUF file"
            raise UsageError(str(path), "it is no GGUF, and no adapter_config.json is there", remedy)
    arguments.adapter = dict(given)


def sweep(text: str) -> dict[str, list[Any]]:
    """Read ``adapters=1,2;rank=8,16``; a missing part has its default."""
    found: dict[str, list[Any]] = {"adapters": [4], "rank": [16]}
    for part in text.split(";"):
        name, equals, values = part.strip().partition("=")
        if name not in found or not equals:
            raise argparse.ArgumentTypeError(f"{text!r} is not adapters=N,N,...;rank=R,R,...")
        found[name] = options.counts(values)
    return found


def save(result: Mapping[str, Any], arguments: argparse.Namespace, *, is_last: bool) -> None:
    """Write ``--metrics-out`` and, before the end, ``--json``, so that an interrupted sweep is kept."""
    out = arguments.metrics_out
    if out and (is_last or out != "-"):
        write = results.write_csv if str(out).endswith(".csv") else results.write
        write(out, result)
    if not is_last:
        options.keep(result, arguments)


def show(found: Sequence[Mapping[str, Any]], *, profile: bool) -> list[str]:
    """Return the printed lines."""
    lines = []
    for one in found:
        rank = f" of rank {one['rank']}, {one['targets']}" if "rank" in one else ""
        lines.append(f"{one['adapters']} adapters{rank}: {one['completed']} requests in {one['duration']:.1f} s")
        engines = one.get("engines") or {"": one}
        rows = [{"whose": name, **engine} for name, engine in engines.items()]
        lines += options.columns(options.table(TABLE, rows))
        has_ratios = not withheld(one)
        for name, ratio in one.get("ratios", {}).items() if has_ratios else ():
            low, sure = one["ratio_low"][name], one["ratio_low_confidence"][name]
            lines.append(f"{one['base']} is {ratio:.2f} x {name}, at least {low:.2f} ({sure:.0%})")
        for name, engine in engines.items():
            lines += _costs(f"{name}: " if name else "", engine) if has_ratios else ()
            if profile:
                groups = [{"whose": key, **value} for key, value in engine["per_adapter"].items()]
                shown = (Column(name or "adapter", "whose"), *OF_ADAPTER)
                lines += options.columns(options.table(shown, groups))
    return lines


def _costs(prefix: str, engine: Mapping[str, Any]) -> Iterator[str]:
    if "lora_tax" in engine:
        yield f"{prefix}adapters cost {engine['lora_tax']:.1%} of the time without"
    if "mixed_over_single" in engine:
        share, low = engine["mixed_over_single"], engine["mixed_over_single_low"]
        sure = engine["mixed_over_single_low_confidence"]
        yield f"{prefix}mixed, {share:.1%} of the throughput of one adapter, at least {low:.1%} ({sure:.0%})"


def _adapter(text: str) -> tuple[str, Path]:
    name, equals, path = text.partition("=")
    if not name or not equals or not path or name == "base":
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=PATH, with a name other than base")
    return name, Path(path).expanduser()


def _ranks(text: str) -> str:
    options.counts(text)
    return text
