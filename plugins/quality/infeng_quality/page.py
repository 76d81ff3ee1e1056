"""A self-contained page of figures, charts and history."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from infeng_quality import charts
from infeng_quality.charts import Point, number, text

STYLE = """
:root { color-scheme: light dark; --ink: #222; --paper: #fff; --soft: #f3f3f3; --rule: #ccc;
  --c0: #1f6fb4; --c1: #c25700; --c2: #2b8a3e; --c3: #9c36b5; --c4: #b8860b; --c5: #c92a2a }
@media (prefers-color-scheme: dark) { :root { --ink: #ddd; --paper: #16181c; --soft: #24272d; --rule: #444;
  --c0: #6db3f2; --c1: #ff9f5a; --c2: #69db7c; --c3: #da77f2; --c4: #ffd43b; --c5: #ff8787 } }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem;
  color: var(--ink); background: var(--paper) }
table { border-collapse: collapse; margin: 1rem 0; display: block; overflow-x: auto }
td, th { border: 1px solid var(--rule); padding: .25rem .6rem; text-align: right }
td:first-child, th, td.words { text-align: left } th { background: var(--soft) }
h2 { margin-top: 3rem; border-bottom: 2px solid var(--rule) }
pre { overflow-x: auto; background: var(--soft); padding: .8rem } .missed { color: var(--c5); font-weight: bold }
figure { margin: 1.5rem 0 } figcaption { font-weight: 600 } svg { width: 100%; height: auto; font-size: 12px }
svg text { fill: var(--ink) } .name { text-anchor: end } .tick { text-anchor: middle } .grid { stroke: var(--rule) }
.mark { stroke: var(--ink); stroke-dasharray: 3 3 } .bar { stroke-width: 5; opacity: .5 }
.line { fill: none; stroke-width: 2 }
.band { opacity: .15; stroke: none } .keys { display: flex; gap: 1rem; flex-wrap: wrap; margin: 0 }
.key i { display: inline-block; width: .8rem; height: .8rem; margin-right: .3rem }
"""
STYLE += "".join(
    f".c{i} {{ color: var(--c{i}) }} .bar.c{i}, .line.c{i} {{ stroke: var(--c{i}) }} "
    f".dot.c{i}, .fill.c{i}, .band.c{i} {{ fill: var(--c{i}) }} i.c{i} {{ background: var(--c{i}) }}\n"
    for i in range(charts.COLOURS)
)
CAUTION = (
    "Intervals have 95% confidence, by a paired bootstrap over blocks of documents. They hold for these texts and "
    "models: figures of a tiny model prove the measurement, not the quality of a larger model."
)


def render(found: Sequence[Mapping[str, Any]], history: Sequence[Mapping[str, Any]]) -> str:
    """Return the HTML of results of kind quality, and of a history of results of any kind."""
    sections = [_section(result) for result in found]
    parts = [_overview(found) if len(found) > 1 else "", *sections, _history(history)]
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'><title>INF-ENG quality</title>"
        f"<style>{STYLE}</style></head><body><h1>INF-ENG quality</h1><p>{text(CAUTION)}</p>{''.join(parts)}"
        "</body></html>\n"
    )


def _overview(found: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        {
            "candidate": one["name"],
            "MB": one["bytes"] / 1e6,
            "bits a weight": one["candidate"]["bits_per_weight"],
            "cache": one["candidate"]["kv_dtype"],
            "perplexity": _interval(one["ppl_ratio"]),
            "KL": _interval({"value": one["kl"]["mean"], **one["kl_interval"]}),
            "top 1": _interval({"value": one["top1"], **one["top1_interval"]}),
        }
        for one in found
    ]
    names = [str(one["name"]) for one in found]
    ratios = charts.intervals(
        "Perplexity, times that of f32",
        [(name, charts.point(one["ppl_ratio"])) for name, one in zip(names, found, strict=True)],
        mark=1.0,
    )
    divergences = charts.intervals(
        "Mean KL, nats", [(name, _kl(one)) for name, one in zip(names, found, strict=True)], mark=0.0
    )
    return f"<section><h2>Side by side</h2>{_table(rows)}{ratios}{divergences}</section>"


def _section(result: Mapping[str, Any]) -> str:
    candidate = result["candidate"]
    parts = [f"<h2>{text(result['name'])}</h2>"]
    what = f"{candidate['model']} against {result['reference']['model']} at {_run_as(result)}, "
    what += f"{result['tokens']} tokens of "
    what += ", ".join(str(one["name"]) for one in result["texts"])
    parts.append(f"<p>{text(what)}; {text(result['machine']['cpu'])}; {text(result['time'])}</p>")
    for gate in result.get("gates", []):
        state = "kept" if gate["passed"] else "missed"
        parts.append(f"<p class='{state}'>gate {text(gate['gate'])}: {state}</p>")
    parts.append(_table(_figures(result)))
    rows = [("perplexity ratio", charts.point(result["ppl_ratio"]))]
    rows += [(f"with {one['name']}", charts.point(one["ppl_ratio"])) for one in result.get("adapters", [])]
    parts.append(charts.intervals(f"Perplexity, times that of {_run_as(result)}", rows, mark=1.0))
    if result.get("adapters"):
        parts.append(f"<h3>With adapters</h3>{_table(_adapters(result))}")
    if "kl_histogram" in result:
        parts.append(charts.columns("KL of single tokens, nats", result["kl_histogram"], "nats"))
    if result.get("by_tensor"):
        bars = [(f"{one['tensor']} {one['format']}", charts.point(one["kl"])) for one in result["by_tensor"]]
        title = f"KL if only these were quantized ({result['by_tensor_tokens']} tokens)"
        parts.append(charts.intervals(title, bars, mark=0.0))
    if result.get("worst_documents"):
        parts.append(f"<h3>Worst documents</h3>{_table(result['worst_documents'])}")
    raw = text(json.dumps(result, indent=1, ensure_ascii=False, default=str))
    parts.append(f"<details><summary>the whole result</summary><pre>{raw}</pre></details>")
    return f"<section>{''.join(parts)}</section>"


def _run_as(result: Mapping[str, Any]) -> str:
    """Return the format in which the reference ran; results without it are of f32."""
    return str(result["reference"].get("run_as", "f32"))


def _adapters(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a row for the base and one per adapter."""
    return [
        {
            "adapter": name,
            "perplexity": _interval(one["ppl_ratio"]),
            "KL": _interval({"value": one["kl"]["mean"], **one["kl_interval"]}),
            "top 1": _interval({"value": one["top1"], **one["top1_interval"]}),
            "perplexity of the reference": one["perplexity"]["reference"],
        }
        for name, one in [("none", result), *((one["name"], one) for one in result["adapters"])]
    ]


def _figures(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a row per figure."""
    kl = result["kl"]
    rows: list[tuple[str, Any]] = [
        (f"perplexity, times that of {_run_as(result)}", _interval(result["ppl_ratio"])),
        (f"nll, minus that of {_run_as(result)}", _interval(result["nll_difference"])),
        ("KL, mean", _interval({"value": kl["mean"], **result["kl_interval"]})),
        ("KL: median, 99%, largest", ", ".join(number(kl[name]) for name in ("median", "p99", "max"))),
        ("the same likeliest token", _interval({"value": result["top1"], **result["top1_interval"]})),
        ("bytes", f"{result['bytes']} of {result['reference_bytes']}"),
        ("bits a weight", result["candidate"]["bits_per_weight"]),
        ("cache", result["candidate"]["kv_dtype"]),
        ("documents, blocks", f"{result['documents']}, {result['blocks']}"),
    ]
    greedy = result["greedy"]
    if greedy["prompts"]:
        said = f"token {greedy['median_first_difference']:g} of {greedy['tokens']}, {greedy['identical']:.0%} the same"
        rows.append(("greedy, first difference (median)", said))
    return [{"figure": name, "": value} for name, value in rows]


def _history(history: Sequence[Mapping[str, Any]]) -> str:
    """Return a chart of each figure over time, with a line per candidate."""
    quality = [one for one in history if one.get("kind") == "quality"]
    speed = [one for one in history if one.get("kind") == "throughput"]
    parts = [
        charts.lines("Perplexity, times that of f32", _series(quality, lambda one: charts.point(one["ppl_ratio"]))),
        charts.lines("Mean KL, nats", _series(quality, _kl)),
        charts.lines("The same likeliest token", _series(quality, _top)),
        charts.lines("Bytes", _series(quality, lambda one: charts.point(one["bytes"]))),
    ]
    for work in dict.fromkeys(str(one.get("work")) for one in speed):
        own = [one for one in speed if one.get("work") == work]
        parts.append(charts.lines(f"Tokens/s: {work}", _series(own, lambda one: charts.point(one["tokens_per_s"]))))
    tasks = [one for one in history if one.get("kind") == "tasks"]
    for task in dict.fromkeys(str(one.get("task")) for one in tasks):
        own = [one for one in tasks if one.get("task") == task]
        parts.append(charts.lines(f"Solved: {task}", _series(own, lambda one: charts.point(one["accuracy"]))))
    if not any(parts):
        return ""
    return f"<section><h2>History</h2><p>{len(history)} results.</p>{''.join(parts)}</section>"


def _series(
    results: Sequence[Mapping[str, Any]], figure: Callable[[Mapping[str, Any]], Point]
) -> dict[str, list[tuple[str, Point]]]:
    """Return the points of each candidate; results without the figure are skipped."""
    found: dict[str, list[tuple[str, Point]]] = {}
    for one in results:
        try:
            name, time, point = str(one["name"]), str(one["time"]), figure(one)
        except (LookupError, TypeError, ValueError, OverflowError):
            continue
        if all(math.isfinite(value) for value in point):
            found.setdefault(name, []).append((time, point))
    return found


def _kl(one: Mapping[str, Any]) -> Point:
    return charts.point({"value": one["kl"]["mean"], **one["kl_interval"]})


def _top(one: Mapping[str, Any]) -> Point:
    return charts.point({"value": one["top1"], **one["top1_interval"]})


def _interval(found: Mapping[str, float]) -> str:
    return f"{number(found['value'])} ({number(found['low'])} to {number(found['high'])})"


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    head = "".join(f"<th>{text(name)}</th>" for name in columns)
    body = "".join("<tr>" + "".join(_cell(row.get(name, "")) for name in columns) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def _cell(value: Any) -> str:
    if isinstance(value, str):
        return f"<td class='words'>{text(value)}</td>"
    return f"<td>{text(number(value) if isinstance(value, float) else value)}</td>"
