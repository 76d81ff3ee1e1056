"""Charts of results, drawn by Plotly."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from infeng_bench.engine.work import Work
from infeng_bench.load.outcomes import QUANTILES
from infeng_bench.reports.results import OURS, measurements
from infeng_bench.stats.contention import withheld
from plotly.graph_objects import Figure
from plotly.io import to_html
from plotly.offline import get_plotlyjs
from plotly.subplots import make_subplots

BAR_HEIGHT = 26  # pixels
DASHES = ("solid", "dash", "dot", "dashdot")  # one per engine of a chart
COLOURS = ("#1f6fb4", "#c25700", "#2b8a3e", "#9c36b5", "#b8860b", "#c92a2a")  # likewise
PHASES = {"decode": "Decoding, tokens/s", "prefill": "Prefill, tokens/s"}

Line = tuple[str, list[int], Sequence[Mapping[str, float]], str]
"""A name, the places of its points, the readings at each, and its dashes."""


class Figures:
    """Draws charts as parts of one HTML page."""

    def __init__(self) -> None:
        """Begin a page without charts."""
        self._drawn = 0

    @property
    def script(self) -> str:
        """Plotly's script, which a page needs once before its charts; "" if no chart was drawn."""
        if not self._drawn:
            return ""
        return f"<script>{get_plotlyjs()}</script>"

    def of(self, result: Mapping[str, Any]) -> list[str]:
        """Return the charts of a result, the most telling first; [] for a kind without."""
        kind, drawn = result["kind"], list[str]()
        if kind == "compare":
            drawn = self.compare(result)
        elif kind in ("decode", "prefill"):
            drawn = self.works(result)
        elif kind == "lora-tax":
            drawn = self.lora_tax(result)
        elif kind == "lora-taxes":
            drawn = [self.lora_taxes(result)]
        elif kind == "swap":
            drawn = [self.swap(result)]
        elif kind == "gemm":
            drawn = [self.gemm(result)]
        elif kind == "zipf":
            drawn = [self.zipf(result), self.latencies(result)]
        elif kind == "simulate":
            drawn = self.simulate(result)
        return [*drawn, *([self.cores(result)] if result.get("core_use") else ())]

    def across(self, found: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
        """Return a chart of the ratios of all comparisons with their lower bounds; "" if there are none."""
        named = [
            (f"{_what(one)}<br>{_text(result.get('model', ''))} {_text(result.get('format', ''))} ({_text(name)})", one)
            for name, result in found
            if result["kind"] in ("compare", "zipf")
            for one in measurements(result)
            if "ratios" in one and not withheld(one)
        ]
        figure = Figure()
        for peer in dict.fromkeys(peer for _, one in named for peer in one["ratios"]):
            shown = [(label, one) for label, one in named if peer in one["ratios"]]
            ratios = [one["ratios"][peer] for _, one in shown]
            figure.add_scatter(
                x=ratios,
                y=[label for label, _ in shown],
                name=f"against {_text(peer)}",
                mode="markers",
                marker={"size": 11},
                error_x=_error([0] * len(shown), [one["ratios"][peer] - one["ratio_low"][peer] for _, one in shown]),
            )
        if not named:
            return ""
        figure.add_vline(x=1, line_dash="dot", line_color="grey")
        figure.update_layout(
            title="Ratio of tokens/s, median of pairs; the bar ends at its lower bound",
            xaxis={"title": "times as fast", "rangemode": "tozero"},
            yaxis={"autorange": "reversed"},
            scattermode="group",
            height=160 + 3 * BAR_HEIGHT * len(named),
        )
        return self.drawn(figure)

    def compare(self, result: Mapping[str, Any]) -> list[str]:
        """Return charts of each engine's tokens/s by work, decode and prefill apart, and over rows and context."""
        shown = measurements(result)
        kinds = dict.fromkeys(Work.parse(one["work"]).kind for one in shown)
        drawn = []
        for kind in kinds:
            own = [one for one in shown if Work.parse(one["work"]).kind == kind]
            drawn.append(
                self._bars(
                    f"{PHASES[kind]}: median, smallest, largest",
                    [one["work"].partition(":")[2] for one in own],
                    {name: [one["engines"][name]["tokens_per_s"] for one in own] for name in own[0]["engines"]},
                )
            )
        return [*drawn, *self.sweeps(result)]

    def works(self, result: Mapping[str, Any]) -> list[str]:
        """Return charts of tokens/s over rows and over context, or by work if neither varies."""
        if drawn := self.sweeps(result):
            return drawn
        shown = measurements(result)
        title = f"{PHASES[result['kind']]}: median, smallest, largest"
        works = [one["work"].partition(":")[2] for one in shown]
        return [self._bars(title, works, {OURS: [one["tokens_per_s"] for one in shown]})]

    def _bars(self, title: str, works: Sequence[str], rates: Mapping[str, Sequence[Mapping[str, float]]]) -> str:
        """Return a chart of spreads of tokens/s by work, with a bar per engine."""
        figure = Figure()
        for name, spreads in rates.items():
            figure.add_bar(
                x=[_text(work) for work in works],
                y=[one["median"] for one in spreads],
                name=_text(name),
                error_y=_error_of(spreads),
            )
        figure.update_layout(title=title, yaxis_title="tokens/s", barmode="group")
        return self.drawn(figure)

    def lora_tax(self, result: Mapping[str, Any]) -> list[str]:
        """Return charts of tokens/s with and without adapters, and of the cost in each pair."""
        rates = result["tokens_per_s"]
        bars = self._bars(
            "Without and with adapters: median, smallest, largest", list(rates), {OURS: list(rates.values())}
        )
        taxes = [100 * (pair["with"] / pair["without"] - 1) for pair in result.get("pairs", ()) if pair["without"] > 0]
        if not taxes or withheld(result):
            return [bars]
        figure = Figure()
        figure.add_scatter(x=list(range(1, len(taxes) + 1)), y=taxes, mode="markers", name="a pair")
        figure.add_hline(y=100 * result["lora_tax"], line_dash="dot", line_color="grey")
        figure.add_hrect(
            y0=100 * result["lora_tax_low"],
            y1=100 * result["lora_tax_high"],
            opacity=0.15,
            line_width=0,
            fillcolor="grey",
        )
        figure.update_layout(
            title="Time that adapters add, by pair; the band holds the median",
            xaxis={"title": "pair"},
            yaxis={"title": "longer by, %", "rangemode": "tozero"},
        )
        return [bars, self.drawn(figure)]

    def swap(self, result: Mapping[str, Any]) -> str:
        """Return a chart of the load of an adapter, and of the steps beside it."""
        shown = {
            "load, batch running": result["adapter_swap"],
            "load, engine idle": {"median": result["idle_adapter_swap_ms"]},
            "from request to adapter": {"median": result["adapter_wait_ms"]},
            "step undisturbed": {"median": result["median_itl_ms"], "max": result["p99_itl_ms"]},
            "step during a load": result["swap_itl"],
        }
        spreads = [{**dict.fromkeys(("min", "max"), one["median"]), **one} for one in shown.values()]
        figure = Figure()
        figure.add_bar(
            y=list(shown),
            x=[one["median"] for one in spreads],
            orientation="h",
            error_x=_error_of(spreads),
        )
        figure.update_layout(
            title="Loading an adapter beside a batch: median, smallest, largest",
            xaxis={"title": "ms", "rangemode": "tozero"},
            yaxis={"autorange": "reversed", "automargin": True},
        )
        return self.drawn(figure)

    def latencies(self, result: Mapping[str, Any]) -> str:
        """Return a chart of the time to first token by number of adapters: median and p99, a line per engine."""
        shown = measurements(result)
        figure = Figure()
        for number, name in enumerate(shown[0].get("engines") or {"": None}):
            for kind, dash in (("median", "solid"), ("p99", "dot")):
                points = [(_what(one), (one["engines"][name] if name else one).get(f"{kind}_ttft_ms")) for one in shown]
                kept = [(place, value) for place, value in points if value is not None]
                figure.add_scatter(
                    x=[place for place, _ in kept],
                    y=[value for _, value in kept],
                    name=_text(f"{name} {kind}".strip()),
                    mode="lines+markers",
                    line={"dash": dash, "color": COLOURS[number % len(COLOURS)]},
                )
        figure.update_layout(
            title="Time to first token with adapters", yaxis={"title": "ms", "rangemode": "tozero"}, showlegend=True
        )
        return self.drawn(figure)

    def cores(self, result: Mapping[str, Any]) -> str:
        """Return a chart of how busy each core was, all programs together."""
        used: Mapping[str, Mapping[str, float]] = result["core_use"]
        figure = Figure()
        for name, label in (("busy", "busy"), ("stolen", "taken by the host")):
            figure.add_bar(
                x=[f"core {_text(core)}" for core in used], y=[100 * one[name] for one in used.values()], name=label
            )
        figure.update_layout(
            title="Processor by core, all programs together",
            yaxis={"title": "% of the time", "range": [0, 100]},
            barmode="stack",
            height=320,
        )
        return self.drawn(figure)

    def sweeps(self, result: Mapping[str, Any]) -> list[str]:
        """Return charts of tokens/s over the number of rows and over the context, of each engine; [] without several.

        A line has the works of one kind that differ in nothing else.
        """
        rates = [
            (name, Work.parse(one["work"]), engine["tokens_per_s"])
            for one in measurements(result)
            for name, engine in one.get("engines", {OURS: one}).items()
        ]
        drawn = []
        for x, other in (("rows", "context"), ("context", "rows")):
            lines: dict[tuple[str, str, int], dict[int, Mapping[str, float]]] = {}
            for name, work, rate in rates:
                lines.setdefault((name, work.kind, getattr(work, other)), {})[getattr(work, x)] = rate
            lines = {key: points for key, points in lines.items() if len(points) > 1}
            for kind in dict.fromkeys(key[1] for key in lines):
                own = {key: dict(sorted(points.items())) for key, points in lines.items() if key[1] == kind}
                lines_of = {f"{name}, {other} {n}": line for (name, _, n), line in own.items()}
                drawn.append(self._sweep(kind, x, lines_of))
        return drawn

    def _sweep(self, kind: str, x: str, lines: Mapping[str, Mapping[int, Mapping[str, float]]]) -> str:
        ticks = sorted({value for points in lines.values() for value in points})
        drawn = [(name, list(points), list(points.values()), "solid") for name, points in lines.items()]
        return self._spreads(
            f"{kind}: tokens/s over {x}", {"title": x, "type": "log", "tickvals": ticks}, "tokens/s", drawn
        )

    def _spreads(self, title: str, x: Mapping[str, Any], y: str, lines: Sequence[Line]) -> str:
        """Return a chart of lines whose points have a smallest and a largest reading. x: the axis. y: its title."""
        figure = Figure()
        for name, places, spreads, dash in lines:
            medians = [one["median"] for one in spreads]
            style = {"mode": "lines+markers", "line_dash": dash, "error_y": _error_of(spreads)}
            figure.add_scatter(x=places, y=medians, name=_text(name), **style)
        y_axis = {"title": f"{y}: median, smallest, largest", "rangemode": "tozero"}
        figure.update_layout(title=title, xaxis=x, yaxis=y_axis, showlegend=True)
        return self.drawn(figure)

    def lora_taxes(self, result: Mapping[str, Any]) -> str:
        """Return a chart of each engine's tax with its bounds, beside the share of its adapters' bytes."""
        engines: Mapping[str, Mapping[str, Any]] = result["engines"]
        names = [_text(name) for name in engines]
        figure = Figure()
        if not withheld(result):
            taxes = [100 * one["lora_tax"] for one in engines.values()]
            above = [100 * one["lora_tax_high"] - tax for one, tax in zip(engines.values(), taxes, strict=True)]
            below = [tax - 100 * one["lora_tax_low"] for one, tax in zip(engines.values(), taxes, strict=True)]
            figure.add_bar(x=names, y=taxes, name="tax", error_y=_error(above, below))
        shares = [100 * one["bytes_share"] if "bytes_share" in one else None for one in engines.values()]
        figure.add_bar(x=names, y=shares, name="bytes of adapters over those of weights")
        title = f"Time that {result['adapters']} adapters add to a step, rank {result['rank']}"
        figure.update_layout(title=title, yaxis_title="% of a step without", barmode="group")
        return self.drawn(figure)

    def zipf(self, result: Mapping[str, Any]) -> str:
        """Return a chart of new tokens/s over the number of adapters, with a line per engine and rank."""
        shown = measurements(result)
        lines: list[Line] = []
        for number, engine in enumerate(shown[0].get("engines") or {"": None}):
            for rank in dict.fromkeys(one.get("rank") for one in shown):
                own = [one for one in shown if one.get("rank") == rank]
                spreads = [(one["engines"][engine] if engine else one)["output_throughput_spread"] for one in own]
                name = " ".join(word for word in (engine, f"rank {rank}" if rank else "") if word)
                lines.append((name, [one["adapters"] for one in own], spreads, DASHES[number % len(DASHES)]))
        title = f"Requests with adapters, Zipf {result['zipf_alpha']:g}, {result['concurrency']} at a time"
        x = {"title": "adapters", "tickvals": sorted({one["adapters"] for one in shown})}
        return self._spreads(title, x, "new tokens/s", lines)

    def gemm(self, result: Mapping[str, Any]) -> str:
        """Return the roofline chart of linears: GMAC/s over MAC per byte, under the limits of memory and arithmetic."""
        figure = Figure()
        points = [(one["gmacs_per_s"] * 1e9 / one["bytes_per_s"], one) for one in result["measurements"]]
        for kernel in dict.fromkeys(one["kernel"] for _, one in points):
            own = [(density, one) for density, one in points if one["kernel"] == kernel]
            figure.add_scatter(
                x=[density for density, _ in own],
                y=[one["gmacs_per_s"] for _, one in own],
                text=[_text(f"{one['linear']} {one['n']}x{one['k']}, {one['rows']} rows") for _, one in own],
                name=_text(kernel),
                mode="markers",
            )
        limits = result.get("roofline") or {}
        if limits and points:
            densities = [density for density, _ in points]
            across = np.geomspace(min(densities) / 2, max(densities) * 2, 200)
            for isa, peak in limits["int8_macs_per_s"].items():
                allowed = np.minimum(across * limits["dram_bytes_per_s"], peak) / 1e9
                figure.add_scatter(
                    x=across.tolist(), y=allowed.tolist(), name=f"limit: DRAM, {_text(isa)}", mode="lines"
                )
        figure.update_layout(
            title="Roofline: linears",
            xaxis={"title": "multiply-adds per byte of weights", "type": "log"},
            yaxis={"title": "GMAC/s", "type": "log"},
        )
        return self.drawn(figure)

    def simulate(self, result: Mapping[str, Any]) -> list[str]:
        """Return charts of TTFT over the share of the requests, of p99 TTFT by tenant, and of the queue.

        For many servers behind a router the chart shows the loads of adapters.
        """
        if "routes" in result:
            loads = Figure()
            routes = [(_text(name), one["loads_per_request"]) for name, one in result["routes"].items()]
            loads.add_bar(x=[name for name, _ in routes], y=[load for _, load in routes])
            loads.update_layout(title="Loads of adapters for each request, by router")
            return [self.drawn(loads)]
        policies: Mapping[str, Any] = result["policies"]
        curves, tenants, queue = (Figure() for _ in range(3))
        for policy, one in policies.items():
            name = _text(policy)
            curves.add_scatter(x=[100 * share for share in QUANTILES], y=one["ttft_curve_ms"], name=name, mode="lines")
            owned = one.get("per_tenant") or one.get("per_adapter") or {}
            shown = {_text(who): figures["p99_ttft_ms"] for who, figures in owned.items() if figures["completed"]}
            tenants.add_bar(x=list(shown), y=list(shown.values()), name=name)
            line = one["timeline"]
            queue.add_scatter(x=line["seconds"], y=line["waiting"], name=f"{name}: waiting", mode="lines")
            queue.add_scatter(
                x=line["seconds"], y=line["running"], name=f"{name}: running", mode="lines", line_dash="dot"
            )
        curves.update_layout(
            title="Time to first token",
            xaxis_title="share of the requests that have it by then, %",
            yaxis={"title": "ms", "type": "log"},
            showlegend=True,
        )
        tenants.update_layout(title="99th percentile of it, by whose request it is", yaxis_title="ms", barmode="group")
        queue.update_layout(title="Requests that run and wait", xaxis_title="simulated seconds", showlegend=True)
        several = any("per_tenant" in one or "per_adapter" in one for one in policies.values())
        return [self.drawn(figure) for figure in ((curves, tenants, queue) if several else (curves, queue))]

    def panels(self, rows: int) -> Any:
        """Return an empty figure with panels one below the other, over one axis."""
        return make_subplots(rows=rows, cols=1, shared_xaxes=True, vertical_spacing=0.08)

    def drawn(self, figure: Any) -> str:
        """Return a figure as a part of a page."""
        self._drawn += 1
        figure.update_layout(margin={"t": 60, "b": 60}, template="plotly_white")
        text: str = to_html(figure, include_plotlyjs=False, full_html=False)
        return text


def _error(above: Sequence[float], below: Sequence[float]) -> dict[str, Any]:
    """Return error bars in Plotly's form."""
    return {"type": "data", "symmetric": False, "array": above, "arrayminus": below}


def _error_of(spreads: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """Return error bars from the smallest reading to the largest."""
    above = [one["max"] - one["median"] for one in spreads]
    return _error(above, [one["median"] - one["min"] for one in spreads])


def _text(value: Any) -> str:
    """Return a label with markup escaped, since Plotly interprets some HTML tags in labels."""
    return html.escape(str(value), quote=False)


def _what(one: Mapping[str, Any]) -> str:
    """Return the title of a comparison: its work, or its adapters."""
    if "work" in one:
        return _text(one["work"])
    return _text(f"{one['adapters']} adapters" + (f", rank {one['rank']}" if "rank" in one else ""))
