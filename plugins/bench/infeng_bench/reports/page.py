"""A self-contained HTML page of any set of results."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from infeng_bench.reports import charts, results
from infeng_bench.reports.results import measurements
from infeng_bench.stats.contention import warnings, withheld

FACTS = ("schema", "kind", "time", "kernels", "machine", "features", "versions")
DEEP = ("pairs", "engine_details", "costs", "timeline", "policies", "per_tenant", "per_adapter", "contention")
"""Long values, which only the raw result shows."""

DEEP_OF = {"zipf": ("engines",), "lora-taxes": ("engines",)}  # values with a table of their own, by kind
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
table { border-collapse: collapse; margin: 1rem 0; display: block; overflow-x: auto }
td, th { border: 1px solid #ccc; padding: .25rem .6rem; text-align: right; white-space: nowrap }
td:first-child, th { text-align: left } th { background: #f3f3f3 }
h2 { margin-top: 3rem; border-bottom: 2px solid #ddd } pre { overflow-x: auto; background: #f7f7f7; padding: .8rem }
.busy { border-left: 4px solid #c25700; padding-left: .6rem }
"""


def page(found: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    """Return the HTML of pairs of a title and a result."""
    figures = charts.Figures()
    body = figures.across(found) + "".join(_section(name, result, figures) for name, result in found)
    links = "".join(f"<li><a href='#{_anchor(name)}'>{_text(name)}</a>: {_text(_title(r))}</li>" for name, r in found)
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'><title>INF-ENG benchmarks</title>"
        f"<style>{STYLE}</style>{figures.script}</head><body><h1>INF-ENG benchmarks</h1><ul>{links}</ul>"
        f"{body}</body></html>\n"
    )


def _section(name: str, result: Mapping[str, Any], figures: charts.Figures) -> str:
    parts = [f"<h2 id='{_anchor(name)}'>{_text(name)}: {_text(_title(result))}</h2>"]
    machine = result["machine"]
    facts = f"{machine['cpu']}, {machine['cores']} cores, {machine['system']}; {result['time']}"
    parts.append(f"<p>{_text(facts)}</p>")
    parts += [f"<p class='busy'>{_text(line)}</p>" for line in warnings([result, *result.get("measurements", ())])]
    if result["kind"] == "compare":
        parts.append(_table(_compare_rows(result)))
        parts.append(figures.compare(result))
    elif result["kind"] in ("decode", "prefill"):
        parts.append(figures.sweeps(result))
    elif result["kind"] == "gemm":
        parts.append(figures.gemm(result))
    elif result["kind"] == "zipf":
        parts.append(_table(_zipf_rows(result)))
        parts.append(figures.zipf(result))
    elif result["kind"] == "lora-taxes":
        parts.append(_table(_tax_rows(result)))
        parts.append(figures.lora_taxes(result))
    elif result["kind"] == "simulate":
        parts.append(_table(_policy_rows(result)))
        parts.append(_table(_tenant_rows(result["policies"])))
        parts.append(figures.simulate(result))
    elif result["kind"] == "serve":
        parts.append(_table(_tenant_rows({"": result})))
    parts.append(_table(_rows(result)))
    raw = _text(json.dumps(result, indent=1, ensure_ascii=False))
    parts.append(f"<details><summary>the whole result</summary><pre>{raw}</pre></details>")
    return f"<section>{''.join(parts)}</section>"


def _compare_rows(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a row per work and engine."""
    rows = []
    for one in measurements(result):
        for name, engine in one["engines"].items():
            rate = engine["tokens_per_s"]
            row = {"work": one["work"], "engine": name, "tokens/s": rate["median"]}
            row["min to max"] = f"{_number(rate['min'])} to {_number(rate['max'])}"
            row["MB a token"] = engine.get("bytes_per_token", 0) / 1e6 or ""
            row[f"{one['base']} / engine"] = _ratio(one, "ratios", name)
            row["at least"] = _ratio(one, "ratio_low", name)
            share = one["roofline"] if name == one["base"] else {}
            row["of DRAM"] = share.get("dram_fraction") or ""
            row["of int8 peak"] = share.get("int8_fraction") or ""
            rows.append(row)
    return rows


def _ratio(one: Mapping[str, Any], figure: str, name: str) -> Any:
    """Return a ratio or its bound; "" for the base itself, or if ratios are withheld."""
    return "" if withheld(one) else one.get(figure, {}).get(name, "")


def _zipf_rows(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a row per set of adapters and engine."""
    rows = []
    for one in measurements(result):
        for name, engine in (one.get("engines") or {"": one}).items():
            row = {"adapters": one["adapters"], "rank": one.get("rank", ""), "engine": name}
            row["new tokens/s"] = engine["output_throughput"]
            spread = engine["output_throughput_spread"]
            row["min to max"] = f"{_number(spread['min'])} to {_number(spread['max'])}"
            for figure in ("ttft", "tpot", "e2el"):
                row[f"{figure} ms"] = engine.get(f"median_{figure}_ms", "")
                row[f"{figure} p99"] = engine.get(f"p99_{figure}_ms", "")
            row["swap ms"] = engine["adapter_swap_ms"]
            row[f"{one.get('base', '')} / engine"] = _ratio(one, "ratios", name)
            row["at least"] = _ratio(one, "ratio_low", name)
            row["adapters cost"] = "" if withheld(one) else engine.get("lora_tax", "")
            row["mixed / one adapter"] = "" if withheld(one) else engine.get("mixed_over_single", "")
            rows.append(row)
    return rows


def _tax_rows(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a row per engine of the taxes of adapters."""
    rows = []
    for name, engine in result["engines"].items():
        row = {"engine": name}
        row |= {f"tokens/s {side}": engine["tokens_per_s"][side]["median"] for side in ("without", "with")}
        for heading, key in (("tax", "lora_tax"), ("at least", "lora_tax_low"), ("at most", "lora_tax_high")):
            row[heading] = "" if withheld(result) else f"{engine[key]:+.1%}"
        row["passes over the weights"] = engine["passes"]
        row["MB of weights"] = engine.get("weight_bytes", 0) / 1e6 or ""
        row["MB of adapters"] = engine.get("adapter_bytes", 0) / 1e6 or ""
        row["bytes' share"] = f"{engine['bytes_share']:.1%}" if "bytes_share" in engine else ""
        rows.append(row)
    return rows


def _policy_rows(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a row per policy, without values that have tables or charts of their own."""
    return [
        {"policy": name, **dict(results.flat({key: value for key, value in one.items() if key not in DEEP}))}
        for name, one in result["policies"].items()
    ]


def _tenant_rows(policies: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a row per policy and tenant or adapter."""
    return [
        {"policy": name, "whose": who, **figures}
        for name, one in policies.items()
        for group in ("per_tenant", "per_adapter")
        for who, figures in one.get(group, {}).items()
    ]


def _rows(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the figures of any result, a row per measurement or a single row; nested names are joined by dots."""
    lists = [result[name] for name in results.LISTS if name in result]
    lines: Iterable[Any] = lists[0] if lists else [result]
    skipped = (*FACTS, *results.LISTS, *DEEP, *DEEP_OF.get(result["kind"], ()))
    return [dict(results.flat({name: value for name, value in line.items() if name not in skipped})) for line in lines]


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return ""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    if len(rows) == 1 and len(columns) > 8:  # a single long row becomes a column
        pairs = "".join(f"<tr><th>{_text(name)}</th><td>{_text(_number(rows[0][name]))}</td></tr>" for name in columns)
        return f"<table>{pairs}</table>"
    head = "".join(f"<th>{_text(name)}</th>" for name in columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{_text(_number(row.get(name, '')))}</td>" for name in columns) + "</tr>" for row in rows
    )
    return f"<table><tr>{head}</tr>{body}</table>"


def _title(result: Mapping[str, Any]) -> str:
    words = [result["kind"], *(str(result[name]) for name in ("work", "model", "format") if name in result)]
    return " ".join(words) + (f", {result['threads']} threads" if "threads" in result else "")


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) and abs(value) < 1e5 else f"{value}"


def _anchor(name: str) -> str:
    return html.escape(name.replace(" ", "-"), quote=True)


def _text(value: Any) -> str:
    return html.escape(str(value), quote=True)
