"""A self-contained HTML page of any set of results: first a sentence and a chart, then all figures, folded."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from infeng_bench.reports import results
from infeng_bench.reports.results import measurements
from infeng_bench.stats.contention import warnings, withheld

from infeng_report import charts, html
from infeng_report.sentences import headline, title
from infeng_report.units import label, shown

TITLE = "INF-ENG benchmarks"
FACTS = ("schema", "kind", "time", "kernels", "machine", "features", "versions")
DEEP = ("pairs", "engine_details", "costs", "timeline", "policies", "routes", "per_tenant", "per_adapter", "contention")
"""Long values, which only the raw result shows."""

SHOWN_APART = ("core_use", "gates")
"""Values with a table or a chart of their own."""
DEEP_OF = {"zipf": ("engines",), "lora-taxes": ("engines",)}  # values with a table of their own, by kind
LATENCIES = {"ttft": "first token", "tpot": "each token", "e2el": "whole request"}


def page(found: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    """Return the HTML of pairs of a title and a result."""
    figures = charts.Figures()
    drawn = [figures.of(result) for _, result in found]
    across = figures.across(found)
    lead = next((one for _, one in found if one["kind"] in ("compare", "zipf")), found[0][1] if found else None)
    parts = [f"<p class='lead'>{html.text(headline(lead))}</p>"] if lead is not None else []
    if across:
        parts.append(across)
    elif drawn and drawn[0]:
        parts.append(drawn[0].pop(0))  # the first chart stands beside its sentence
    if len(found) > 1:
        parts.append(f"<ul>{''.join(map(_link, found))}</ul>")
    parts += [_section(name, one, own, len(found) > 1) for (name, one), own in zip(found, drawn, strict=True)]
    return html.document(TITLE, "".join(parts), figures.script)


def _link(named: tuple[str, Mapping[str, Any]]) -> str:
    name, result = named
    return f"<li><a href='#{_anchor(name)}'>{html.text(name)}</a>: {html.text(headline(result))}</li>"


def _section(name: str, result: Mapping[str, Any], drawn: Sequence[str], is_one_of_several: bool) -> str:
    """Return the part of one result: its sentence, its charts, and its tables, which fold."""
    heading = title(result) if name == result["kind"] else f"{name}: {title(result)}"
    parts = [f"<h2 id='{_anchor(name)}'>{html.text(heading)}</h2>"]
    if is_one_of_several:
        parts.append(f"<p>{html.text(headline(result))}</p>")
    machine = result["machine"]
    facts = f"{machine['cpu']}, {machine['cores']} cores, {machine['system']}; {result['time']}"
    parts.append(f"<p class='facts'>{html.text(facts)}</p>")
    busy = warnings([result, *result.get("measurements", ())])
    parts += [f"<p class='busy'>{html.text(line)}</p>" for line in busy]
    parts += drawn
    parts += [html.folded(summary, table) for summary, table in _tables(result)]
    raw = html.text(json.dumps(result, indent=1, ensure_ascii=False))
    parts.append(html.folded("the whole result", f"<pre>{raw}</pre>"))
    return f"<section>{''.join(parts)}</section>"


def _tables(result: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """Yield the summary and the HTML of each table of a result."""
    if result.get("gates"):
        yield "gates", html.table([{name: _shown(name, one) for name, one in gate.items()} for gate in result["gates"]])
    if result["kind"] == "compare":
        yield "engines by work", html.table(_compare_rows(result))
    elif result["kind"] == "zipf":
        yield "engines by adapters", html.table(_zipf_rows(result))
    elif result["kind"] == "lora-taxes":
        yield "taxes by engine", html.table(_tax_rows(result))
    elif "routes" in result:  # many servers behind a router
        yield "routers", html.table([{"router": name, **_named(one)} for name, one in result["routes"].items()])
    elif result["kind"] == "simulate":
        yield "policies", html.table(_policy_rows(result))
        yield "tenants and adapters", html.table(_tenant_rows(result["policies"]))
    elif result["kind"] == "serve":
        yield "tenants and adapters", html.table(_tenant_rows({"": result}))
    rows = _rows(result)
    if len(rows) == 1:
        yield "all figures", html.pairs((label(name), _shown(name, value)) for name, value in rows[0].items())
    else:
        yield "all figures", html.table([_named(row) for row in rows])


def _compare_rows(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a row per work and engine."""
    rows = []
    for one in measurements(result):
        for name, engine in one["engines"].items():
            rate = engine["tokens_per_s"]
            row = {"work": one["work"], "engine": name, "median": _shown("tokens_per_s", rate["median"])}
            row["smallest to largest"] = _range("tokens_per_s", rate)
            row["memory read for a token"] = _shown("bytes", engine.get("bytes_per_token") or "")
            row[f"{one['base']} / engine"] = _ratio(one, "ratios", name)
            row["at least"] = _ratio(one, "ratio_low", name)
            share = one["roofline"] if name == one["base"] else {}
            row["of DRAM"] = _shown("dram_fraction", share.get("dram_fraction") or "")
            row["of int8 peak"] = _shown("int8_fraction", share.get("int8_fraction") or "")
            rows.append(row)
    return rows


def _ratio(one: Mapping[str, Any], figure: str, name: str) -> str:
    """Return a ratio or its bound; "" for the base itself, or if ratios are withheld."""
    return "" if withheld(one) else _shown(figure, one.get(figure, {}).get(name, ""))


def _zipf_rows(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a row per set of adapters and engine."""
    rows = []
    for one in measurements(result):
        for name, engine in (one.get("engines") or {"": one}).items():
            row = {"adapters": one["adapters"], "rank": one.get("rank", ""), "engine": name}
            row["new tokens"] = _shown("output_throughput", engine["output_throughput"])
            row["smallest to largest"] = _range("output_throughput", engine["output_throughput_spread"])
            for figure, words in LATENCIES.items():
                row[words] = _shown("ttft_ms", engine.get(f"median_{figure}_ms", ""))
                row[f"{words}, p99"] = _shown("ttft_ms", engine.get(f"p99_{figure}_ms", ""))
            row["load of an adapter"] = _shown("adapter_swap_ms", engine["adapter_swap_ms"])
            row[f"{one.get('base', '')} / engine"] = _ratio(one, "ratios", name)
            row["at least"] = _ratio(one, "ratio_low", name)
            row["adapters cost"] = "" if withheld(one) else _shown("lora_tax", engine.get("lora_tax", ""))
            mixed = "" if withheld(one) else engine.get("mixed_over_single", "")
            row["mixed / one adapter"] = _shown("mixed_over_single", mixed)
            rows.append(row)
    return rows


def _tax_rows(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a row per engine of the taxes of adapters."""
    rows = []
    for name, engine in result["engines"].items():
        row = {"engine": name}
        for side in ("without", "with"):
            row[f"tokens {side}"] = _shown("tokens_per_s", engine["tokens_per_s"][side]["median"])
        for heading, key in (("tax", "lora_tax"), ("at least", "lora_tax_low"), ("at most", "lora_tax_high")):
            row[heading] = "" if withheld(result) else _shown(key, engine[key])
        row["passes over the weights"] = str(engine["passes"])
        row["weights"] = _shown("weight_bytes", engine.get("weight_bytes") or "")
        row["adapters"] = _shown("adapter_bytes", engine.get("adapter_bytes") or "")
        row["bytes' share"] = _shown("bytes_share", engine.get("bytes_share", ""))
        rows.append(row)
    return rows


def _policy_rows(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a row per policy, without values that have tables or charts of their own."""
    return [
        {"policy": name, **_named(dict(results.flat({key: value for key, value in one.items() if key not in DEEP})))}
        for name, one in result["policies"].items()
    ]


def _tenant_rows(policies: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a row per policy and tenant or adapter."""
    return [
        {"policy": name, "whose": who, **_named(dict(results.flat(figures)))}
        for name, one in policies.items()
        for group in ("per_tenant", "per_adapter")
        for who, figures in one.get(group, {}).items()
    ]


def _rows(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the figures of any result, a row per measurement or a single row; nested names are joined by dots."""
    lists = [result[name] for name in results.LISTS if name in result]
    lines: Iterable[Any] = lists[0] if lists else [result]
    skipped = (*FACTS, *results.LISTS, *DEEP, *SHOWN_APART, *DEEP_OF.get(result["kind"], ()))
    return [dict(results.flat({name: value for name, value in line.items() if name not in skipped})) for line in lines]


def _named(row: Mapping[str, Any]) -> dict[str, str]:
    """Return a row with names and values for people."""
    return {label(name): _shown(name, value) for name, value in row.items()}


def _shown(name: str, value: Any) -> str:
    return "" if value is None or value == "" else shown(name, value)


def _range(name: str, spread: Mapping[str, float]) -> str:
    return f"{_shown(name, spread['min'])} to {_shown(name, spread['max'])}"


def _anchor(name: str) -> str:
    return html.text(name.replace(" ", "-"))
