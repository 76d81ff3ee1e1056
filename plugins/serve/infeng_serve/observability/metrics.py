"""Metrics of the server, counted in plain integers and floats and rendered at each scrape."""

from __future__ import annotations

import contextlib
import platform
import time
from bisect import bisect_left
from typing import Literal

from infeng_core.api import BASE, AdapterInfo, AdapterTotals, Engine, InfengError, __version__
from infeng_core.api.servers import StartupTimes
from infeng_serve.observability import workers
from infeng_serve.observability.exposition import Exposition, Histogram
from infeng_serve.observability.families import CHOICES, FAMILIES, FIRST_TOKEN, PER_TOKEN, WHOLE, token_bounds
from infeng_serve.observability.groups import OTHER, Group, Groups
from infeng_serve.observability.process import add_process
from infeng_serve.observers import Record

Prefix = Literal["infeng", "vllm"]

REASONS = ("stop", "length", "tool_calls", "cancelled", "timeout", "error")
"""Values of the label ``finished_reason``."""
COMPLETE = frozenset({"stop", "length", "tool_calls"})
"""Reasons of complete answers; only their durations are observed."""
REJECTIONS = ("overloaded", "rate_limited", "unauthorized", "forbidden", "not_found", "too_large", "invalid")
"""Reasons of rejections; other reasons are counted too, up to MOST_REJECTIONS."""
MOST_REJECTIONS = 32

VLLM_REASONS = {"tool_calls": "stop", "cancelled": "abort", "timeout": "abort"}
"""vLLM's names of the reasons."""

COMBINED = "combined"
"""Label of requests that combine adapters; there are too many combinations to count them separately."""
NO_TENANT = "default"
"""Label of requests without a tenant."""


class _Live:
    """A request in flight."""

    __slots__ = ("adapter", "is_prompt_counted", "record", "tenant")

    def __init__(self, record: Record, tenant: Group, adapter: Group) -> None:
        self.record = record  # keeps the record alive, so that its id() stays unique
        self.tenant = tenant
        self.adapter = adapter
        self.is_prompt_counted = False


class Metrics:
    """An Observer that counts. The engine's own figures are read at each scrape."""

    def __init__(
        self,
        engine: Engine,
        model: str,
        *,
        prefix: Prefix = "infeng",
        most_adapters: int = 64,
        most_tenants: int = 64,
        startup: StartupTimes | None = None,
    ) -> None:
        """model: served name of the base. prefix: of all names. most_*: how many are counted apart from "other".

        startup: durations of the phases of the start.

        With the prefix ``vllm``, reasons and labels are vLLM's too, so that its dashboards and routers work.
        """
        self._engine = engine
        self._prefix = prefix
        self._common = {"model_name": model, **({"engine": "0"} if prefix == "vllm" else {})}
        self._model = model
        self._startup = startup or StartupTimes()
        self._most_adapters = most_adapters
        self._live: dict[int, _Live] = {}
        self._tenants = Groups(most_tenants)
        self._adapters = Groups(most_adapters)
        self._prompted = self._cached = self._generated = self._drafted = self._accepted = 0
        self._ended = dict.fromkeys(REASONS, 0)
        self._rejected = dict.fromkeys(REJECTIONS, 0)
        tokens = token_bounds(engine.limits.context)
        self._first_token = Histogram(FIRST_TOKEN)
        self._between = Histogram(PER_TOKEN)
        self._of_requests = {
            "e2e_request_latency_seconds": Histogram(WHOLE),
            "request_queue_time_seconds": Histogram(WHOLE),
            "request_prefill_time_seconds": Histogram(WHOLE),
            "request_decode_time_seconds": Histogram(WHOLE),
            "request_inference_time_seconds": Histogram(WHOLE),
            "request_time_per_output_token_seconds": Histogram(PER_TOKEN),
            "request_prompt_tokens": Histogram(tokens),
            "request_generation_tokens": Histogram(tokens),
            "request_prefill_kv_computed_tokens": Histogram(tokens),
            "request_params_max_tokens": Histogram(tokens),
            "request_params_n": Histogram(CHOICES),
        }

    # ----------------------------------------------------------------------------------------------------- events ---

    def accepted(self, record: Record) -> None:
        """Count an accepted request."""
        self._enter(record)

    def tokens(self, record: Record, new: int, now: float) -> None:
        """Count new tokens, and for each of them the time since the last ones."""
        if new <= 0:
            return
        live = self._live.get(id(record)) or self._enter(record)
        self._generated += new
        live.tenant.generated += new
        live.adapter.generated += new
        if not record.last_token:
            self._begin_answer(live, max(0.0, now - record.arrived))
            return
        gap = max(0.0, now - record.last_token)
        between = self._between
        between.counts[bisect_left(between.bounds, gap / new)] += new
        between.sum += gap

    def ended(self, record: Record) -> None:
        """Count the end of a request."""
        live = self._live.pop(id(record), None)
        if live is None:
            self._enter(record)
            live = self._live.pop(id(record))
        live.tenant.in_flight -= 1
        live.adapter.in_flight -= 1
        if record.started:
            self._count_prompt(live)
        reason = record.finish_reason if record.finish_reason in self._ended else "error"
        self._ended[reason] += 1
        self._drafted += record.drafted_tokens
        self._accepted += record.accepted_tokens
        if reason in COMPLETE:
            self._observe(record)

    def rejected(self, record: Record, reason: str) -> None:
        """Count a call that was not accepted."""
        if reason not in self._rejected and len(self._rejected) >= MOST_REJECTIONS:
            reason = OTHER
        self._rejected[reason] = self._rejected.get(reason, 0) + 1
        if record.tenant:
            self._tenants.of(record.tenant).rejected += 1

    def _enter(self, record: Record) -> _Live:
        adapter = COMBINED if "+" in record.adapter else record.adapter or BASE
        live = _Live(record, self._tenants.of(record.tenant or NO_TENANT), self._adapters.of(adapter))
        self._live[id(record)] = live
        for group in (live.tenant, live.adapter):
            group.in_flight += 1
            group.requests += 1
        return live

    def _begin_answer(self, live: _Live, seconds: float) -> None:
        for histogram in (self._first_token, live.tenant.first_token, live.adapter.first_token):
            histogram.observe(seconds)
        self._count_prompt(live)

    def _count_prompt(self, live: _Live) -> None:
        """Count a prompt once its length is known."""
        record = live.record
        if live.is_prompt_counted or not record.prompt_tokens:
            return
        live.is_prompt_counted = True
        self._prompted += record.prompt_tokens
        self._cached += record.cached_tokens
        live.tenant.prompted += record.prompt_tokens
        live.adapter.prompted += record.prompt_tokens

    def _observe(self, record: Record) -> None:
        """Add the durations of a request whose answer is complete."""
        spans = {
            "e2e_request_latency_seconds": (record.arrived, record.ended),
            "request_queue_time_seconds": (record.submitted, record.started),
            "request_prefill_time_seconds": (record.started, record.first_token),
            "request_decode_time_seconds": (record.first_token, record.last_token),
            "request_inference_time_seconds": (record.started, record.last_token),
        }
        for name, (begin, end) in spans.items():
            if begin and end:
                self._of_requests[name].observe(max(0.0, end - begin))
        if record.completion_tokens > 1 and record.first_token:
            mean = (record.last_token - record.first_token) / (record.completion_tokens - 1)
            self._of_requests["request_time_per_output_token_seconds"].observe(max(0.0, mean))
        self._of_requests["request_prompt_tokens"].observe(record.prompt_tokens)
        self._of_requests["request_generation_tokens"].observe(record.completion_tokens)
        self._of_requests["request_prefill_kv_computed_tokens"].observe(record.prompt_tokens - record.cached_tokens)
        if record.requests:
            self._of_requests["request_params_n"].observe(record.requests)
        if record.max_tokens:
            self._of_requests["request_params_max_tokens"].observe(record.max_tokens)

    # ---------------------------------------------------------------------------------------------------- scrapes ---

    def render(self, openmetrics: bool) -> bytes:
        """Return all metrics in OpenMetrics 1.0 or the text format 0.0.4. Must run on the event loop's thread."""
        return self.collect().render(openmetrics)

    def collect(self) -> Exposition:
        """Return all metrics as of now. Must run on the event loop's thread; any thread may render the result."""
        out = Exposition(self._prefix, self._common)
        infos, totals = self._known_adapters()
        self._adapters.keep(_Names(self._engine))
        self._add_engine(out)
        self._add_requests(out)
        self._add_adapters(out, infos, totals)
        self._add_groups(out, "lora", self._adapters)
        self._add_groups(out, "tenant", self._tenants)
        out.add(FAMILIES["tenant_rejections_total"], *(((g.name,), g.rejected) for g in self._tenants))
        add_process(out)
        spans = (((phase,), round(seconds, 6)) for phase, seconds in self._startup.seconds.items())
        out.add(FAMILIES["infeng_startup_seconds"], *spans)
        build = (__version__, platform.python_version(), self._model, self._engine.config.backend.use)
        out.add(FAMILIES["infeng_build_info"], (build, 1))
        return out

    def _known_adapters(self) -> tuple[list[AdapterInfo], AdapterTotals]:
        """Return those adapters that have labels of their own, and the counts of all; no scrape looks at thousands."""
        try:
            return self._engine.adapters.infos(self._most_adapters), self._engine.adapters.totals()
        except InfengError:  # the engine has been closed
            return [], AdapterTotals(names=0, resident=0, loads=0, load_seconds=0.0)

    def _add_engine(self, out: Exposition) -> None:
        load = self._engine.load()
        for name, value in {
            "num_requests_running": load.running,
            "num_requests_waiting": load.waiting,
            "kv_cache_usage_perc": load.used_blocks / max(1, load.blocks),
            "predicted_wait_seconds": load.wait_seconds,
            "prefix_cache_queries_total": load.prefix_queries,
            "prefix_cache_hits_total": load.prefix_hits,
            "num_preemptions_total": load.preemptions,
        }.items():
            out.add(FAMILIES[name], ((), value))
        times = workers.times()
        out.add(FAMILIES["worker_busy_seconds_total"], *(((name,), one.busy) for name, one in times.items()))
        out.add(FAMILIES["worker_waiting_seconds_total"], *(((name,), one.waiting) for name, one in times.items()))
        cache = self._engine.config.kv_cache
        out.add(FAMILIES["cache_config_info"], ((str(cache.block), str(load.blocks), cache.dtype), 1))

    def _add_requests(self, out: Exposition) -> None:
        out.add(FAMILIES["prompt_tokens_total"], ((), self._prompted))
        out.add(FAMILIES["prompt_tokens_cached_total"], ((), self._cached))
        sources = {"local_compute": self._prompted - self._cached, "local_cache_hit": self._cached}
        out.add(FAMILIES["prompt_tokens_by_source_total"], *(((source,), n) for source, n in sources.items()))
        out.add(FAMILIES["generation_tokens_total"], ((), self._generated))
        out.add(FAMILIES["spec_decode_num_draft_tokens_total"], ((), self._drafted))
        out.add(FAMILIES["spec_decode_num_accepted_tokens_total"], ((), self._accepted))
        out.add_histograms(FAMILIES["time_to_first_token_seconds"], [((), self._first_token)])
        out.add_histograms(FAMILIES["inter_token_latency_seconds"], [((), self._between)])
        ended: dict[str, int] = {}
        for reason, count in self._ended.items():
            shown = VLLM_REASONS.get(reason, reason) if self._prefix == "vllm" else reason
            ended[shown] = ended.get(shown, 0) + count
        out.add(FAMILIES["request_success_total"], *(((r,), n) for r, n in ended.items()))
        out.add(FAMILIES["admission_rejections_total"], *(((r,), n) for r, n in self._rejected.items()))
        for name, histogram in self._of_requests.items():
            out.add_histograms(FAMILIES[name], [((), histogram)])

    def _add_adapters(self, out: Exposition, shown: list[AdapterInfo], totals: AdapterTotals) -> None:
        facts = (
            str(self._engine.config.adapters.most_resident),
            ",".join(info.name for info in shown if info.references),
            ",".join(info.name for info in shown if info.waiting),
        )
        out.add(FAMILIES["lora_requests_info"], (facts, time.time()))
        loaded = [((i.name, "" if i.rank is None else str(i.rank)), int(i.state == "resident")) for i in shown]
        loads = [((i.name,), i.total_load_seconds, i.loads) for i in shown]
        if totals.names > len(shown):
            seconds, count = sum(i.total_load_seconds for i in shown), sum(i.loads for i in shown)
            loaded.append(((OTHER, ""), max(0, totals.resident - sum(one for _, one in loaded))))
            loads.append(((OTHER,), max(0.0, totals.load_seconds - seconds), max(0, totals.loads - count)))
        out.add(FAMILIES["lora_adapter_loaded"], *loaded)
        out.add_summaries(FAMILIES["lora_adapter_load_seconds"], loads)

    def _add_groups(self, out: Exposition, of: str, groups: Groups) -> None:
        named = [((group.name,), group) for group in groups]
        out.add(FAMILIES[f"{of}_requests_in_flight"], *((name, group.in_flight) for name, group in named))
        out.add(FAMILIES[f"{of}_requests_total"], *((name, group.requests) for name, group in named))
        out.add(FAMILIES[f"{of}_prompt_tokens_total"], *((name, group.prompted) for name, group in named))
        out.add(FAMILIES[f"{of}_generation_tokens_total"], *((name, group.generated) for name, group in named))
        out.add_histograms(
            FAMILIES[f"{of}_time_to_first_token_seconds"], [(name, group.first_token) for name, group in named]
        )


class _Names:
    """The names that may have labels: the base's, and those of the engine's adapters."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __contains__(self, name: object) -> bool:
        with contextlib.suppress(InfengError):  # the engine has been closed
            return name in (BASE, COMBINED) or name in self._engine.adapters
        return False
