"""Figures of the time between two scrapes: rates, percentiles, and rows of tenants and adapters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from infeng_serve.observability.scrape import Scrape, quantile

Percentiles = Mapping[str, float | None]


@dataclass(frozen=True)
class Row:
    """Figures of one tenant or adapter; rates are per second."""

    name: str
    in_flight: int
    requests: float
    prompt_tokens: float
    generation_tokens: float
    ttft_ms: float | None
    """Median time to first token, in milliseconds."""
    rejections: float | None = None
    """Of tenants."""
    rank: str = ""
    """Of adapters."""
    loaded: bool | None = None
    load_ms: float | None = None
    """Mean time of a load since the start, in milliseconds."""


@dataclass(frozen=True)
class Figures:
    """Figures of the server; rates are per second."""

    model: str
    seconds: float
    """The span."""
    running: int
    waiting: int
    predicted_wait_ms: float
    kv_cache_usage: float
    requests: float
    rejections: float
    preemptions: float
    prompt_tokens: float
    generation_tokens: float
    prefix_hit_rate: float | None
    ttft_ms: Percentiles
    itl_ms: Percentiles
    cores: float
    """Processor time."""
    resident_bytes: int
    tenants: tuple[Row, ...]
    adapters: tuple[Row, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)


def figures(now: Scrape, before: Scrape) -> Figures:
    """Return the figures since ``before``. A counter that is smaller now has restarted at 0 with the server."""
    seconds = max(1e-9, now.at - before.at)

    def added(name: str, **labels: str) -> float:
        value, old = now.total(name, **labels), before.total(name, **labels)
        return value - old if value >= old else value

    def rate(name: str, **labels: str) -> float:
        return added(name, **labels) / seconds

    queries = added("prefix_cache_queries_total")
    tenants = [
        _row("tenant", "tenant", name, now, before, rate) for name in now.names("tenant_requests_total", "tenant")
    ]
    adapters = now.names("lora_adapter_loaded", "adapter_name") + now.names("lora_requests_total", "adapter_name")
    return Figures(
        model=next(iter(now.names("infeng_build_info", "model_name")), ""),
        seconds=seconds,
        running=int(now.total("num_requests_running")),
        waiting=int(now.total("num_requests_waiting")),
        predicted_wait_ms=1000 * now.total("predicted_wait_seconds"),
        kv_cache_usage=now.total("kv_cache_usage_perc"),
        requests=rate("tenant_requests_total"),
        rejections=rate("admission_rejections_total"),
        preemptions=rate("num_preemptions_total"),
        prompt_tokens=rate("prompt_tokens_total"),
        generation_tokens=rate("generation_tokens_total"),
        prefix_hit_rate=added("prefix_cache_hits_total") / queries if queries else None,
        ttft_ms=_percentiles("time_to_first_token_seconds", now, before),
        itl_ms=_percentiles("inter_token_latency_seconds", now, before),
        cores=rate("process_cpu_seconds_total"),
        resident_bytes=int(now.total("process_resident_memory_bytes")),
        tenants=_busiest(tenants),
        adapters=_busiest([_adapter(name, now, before, rate) for name in dict.fromkeys(adapters)]),
    )


def _adapter(name: str, now: Scrape, before: Scrape, rate: Callable[..., float]) -> Row:
    known = next((dict(of) for of in now.values.get("lora_adapter_loaded", {}) if ("adapter_name", name) in of), None)
    loads = now.total("lora_adapter_load_seconds_count", adapter_name=name)
    return _row(
        "lora",
        "adapter_name",
        name,
        now,
        before,
        rate,
        rank=(known or {}).get("rank", ""),
        loaded=None if known is None else now.total("lora_adapter_loaded", adapter_name=name) > 0,
        load_ms=1000 * now.total("lora_adapter_load_seconds_sum", adapter_name=name) / loads if loads else None,
    )


def _row(of: str, label: str, name: str, now: Scrape, before: Scrape, rate: Callable[..., float], **more: Any) -> Row:
    labels = {label: name}
    half = _percentiles(f"{of}_time_to_first_token_seconds", now, before, **labels)["p50"]
    return Row(
        name=name,
        in_flight=int(now.total(f"{of}_requests_in_flight", **labels)),
        requests=rate(f"{of}_requests_total", **labels),
        prompt_tokens=rate(f"{of}_prompt_tokens_total", **labels),
        generation_tokens=rate(f"{of}_generation_tokens_total", **labels),
        ttft_ms=half,
        rejections=rate("tenant_rejections_total", **labels) if of == "tenant" else None,
        **more,
    )


def _percentiles(histogram: str, now: Scrape, before: Scrape, **labels: str) -> dict[str, float | None]:
    counts, old = now.buckets(histogram, **labels), before.buckets(histogram, **labels)
    if any(count < old.get(bound, 0.0) for bound, count in counts.items()):
        old = {}
    found = {f"p{q}": quantile(q / 100, counts, old) for q in (50, 90, 99)}
    return {name: None if value is None else 1000 * value for name, value in found.items()}


def _busiest(rows: list[Row]) -> tuple[Row, ...]:
    return tuple(sorted(rows, key=lambda row: (-row.generation_tokens, -row.in_flight, row.name)))
