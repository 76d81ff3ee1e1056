"""The sentence with which a result's part of a page begins: what was measured, and what came out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from infeng_bench.reports.results import measurements
from infeng_bench.stats.contention import withheld

from infeng_report.units import digits, shown

Result = Mapping[str, Any]


def headline(result: Result) -> str:
    """Return the sentence of a result; of an unknown kind, or without the usual figures, its title."""
    try:
        said = SENTENCES[result["kind"]](result)
    except (KeyError, IndexError, TypeError, ValueError, ZeroDivisionError):
        said = ""
    return said or f"{title(result)}."


def title(result: Result) -> str:
    """Return the kind, the model, the format and the threads of a result."""
    words = [result["kind"], *(str(result[name]) for name in ("work", "model", "format") if name in result)]
    return " ".join(words) + (f", {result['threads']} threads" if "threads" in result else "")


def where(result: Result) -> str:
    """Return the processor of a result."""
    threads = f"{result['threads']} threads of " if "threads" in result else ""
    return f"on {threads}{result['machine']['cpu']}"


def model(result: Result) -> str:
    """Return the model and its format."""
    return " ".join(str(result[name]) for name in ("model", "format") if name in result) or "The model"


def _rate(value: float) -> str:
    return shown("tokens_per_s", float(value))


def _works(result: Result) -> str:
    verb = "decodes" if result["kind"] == "decode" else "reads prompts at"
    said = [f"{_rate(one['tokens_per_s']['median'])} ({_size(one)})" for one in measurements(result)]
    listed = said[0] if len(said) == 1 else f"{said[0]} to {said[-1]}"
    return f"{model(result)} {verb} {listed} {where(result)}."


def _size(one: Result) -> str:
    rows = one["rows"]
    return f"{rows} {'row' if rows == 1 else 'rows'}, context {one['context']}"


def _compare(result: Result) -> str:
    one = measurements(result)[0]
    if withheld(one):
        return f"{one['work']}: the machine was too busy to compare engines."
    said = [
        f"{shown('ratios', ratio)[:-2]} times as fast as {name} (at least {digits(one['ratio_low'][name])})"
        for name, ratio in one["ratios"].items()
    ]
    more = len(measurements(result)) - 1
    rest = f", and {more} more {'work' if more == 1 else 'works'} below" if more else ""
    return f"{one['base']} is {' and '.join(said)} at {one['work']}{rest}."


def _tax(result: Result) -> str:
    kind = "DoRA" if result["dora"] else "LoRA"
    what = f"{_adapters(result['adapters'], kind)} of rank {result['rank']}"
    if withheld(result):
        return f"{what} were measured, but the machine was too busy to tell their cost."
    bounds = f"{shown('lora_tax', result['lora_tax_low'])} to {shown('lora_tax', result['lora_tax_high'])}"
    doing = "decoding" if result["phase"] == "decode" else "prefill"
    makes = "makes" if result["adapters"] == 1 else "make"
    return f"{what} {makes} {doing} take {shown('lora_tax', result['lora_tax'])} longer ({bounds}) {where(result)}."


def _swap(result: Result) -> str:
    loaded = shown("adapter_swap_ms", result["adapter_swap_ms"])
    steps = digits(result["swap_itl_ratio"])
    return (
        f"An adapter of {shown('bytes', result['adapter_bytes'])} is loaded in {loaded} beside the running batch, "
        f"whose steps take {steps} times as long meanwhile."
    )


def _adapters(count: int, kind: str = "") -> str:
    return f"{count} {kind}".rstrip() + (" adapter" if count == 1 else " adapters")


def _zipf(result: Result) -> str:
    one = measurements(result)[-1]
    name, engine = next(iter((one.get("engines") or {model(result): one}).items()))
    said = f"{name} serves {_rate(engine['output_throughput'])} with {_adapters(one['adapters'])}"
    if "median_ttft_ms" in engine:
        said += f"; the first token comes after {shown('median_ttft_ms', engine['median_ttft_ms'])} (median)"
    if not withheld(one):
        faster = [f"{digits(ratio)} times {other}" for other, ratio in one.get("ratios", {}).items()]
        said += f"; that is {' and '.join(faster)}" if faster else ""
    return f"{said}."


def _traffic(result: Result) -> str:
    said = f"{model(result)} answers {result['completed']} requests at {_rate(result['output_throughput'])}"
    if "median_ttft_ms" in result:
        first, late = (shown("ttft_ms", result[f"{kind}_ttft_ms"]) for kind in ("median", "p99"))
        said += f"; the first token comes after {first} (median; p99 {late})"
    return f"{said} {where(result)}."


def _pace(result: Result) -> str:
    late = shown("itl_ms", result["p99_itl_ms"])
    return (
        f"Beside a prompt of {result['prompt']} tokens, {result['rows']} sequences get a token within {late} (p99), "
        f"and all tokens together lose {shown('total_loss', result['total_loss'])}."
    )


def _prefix(result: Result) -> str:
    cold, hit = (shown("ttft_ms", result[f"{kind}_ttft_ms"]) for kind in ("cold", "hit"))
    return f"The first token comes after {hit} if the prompt's beginning is in the cache, after {cold} if not."


def _gemm(result: Result) -> str:
    best = max(measurements(result), key=lambda one: one["gmacs_per_s"])
    rate = digits(best["gmacs_per_s"])
    return f"The fastest linear, {best['linear']} at {best['rows']} rows, does {rate} GMAC/s {where(result)}."


def _roofline(result: Result) -> str:
    peak = max(result["int8_macs_per_s"].values(), default=0.0)
    return (
        f"This machine reads {shown('bytes_per_s', result['dram_bytes_per_s'])} from memory "
        f"and does {digits(peak / 1e9)} GMAC/s in int8 {where(result)}."
    )


def _simulate(result: Result) -> str:
    if "routes" in result:  # many servers behind a router
        waits = [f"{one['wait_p99_s']:.3g} s behind {name}" for name, one in result["routes"].items()]
        count = result["fleet"]["replicas"]
        return f"In the simulation of {count} servers, 99% of the requests wait for at most {', '.join(waits)}."
    said = [f"{shown('ttft_ms', one['p99_ttft_ms'])} under {name}" for name, one in result["policies"].items()]
    return f"In the simulation, 99% of the first tokens come within {', '.join(said)}."


SENTENCES: Mapping[str, Callable[[Result], str]] = {
    "decode": _works, "prefill": _works, "compare": _compare, "lora-tax": _tax, "swap": _swap, "zipf": _zipf,
    "throughput": _traffic, "serve": _traffic, "pace": _pace, "prefix": _prefix, "gemm": _gemm, "roofline": _roofline,
    "simulate": _simulate,
}  # fmt: skip
"""By the kind of a result."""
