"""Every metric: name, kind, description, labels. docs/operations.md has the same table."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple

Kind = Literal["gauge", "counter", "histogram", "summary", "info"]

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
"""Content types of the two formats."""


class Family(NamedTuple):
    """A metric; ``name`` includes the suffix (``_total``, ``_info``) but not the prefix."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    """Labels besides the model's name."""


FIRST_TOKEN = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0,
    640.0, 2560.0,
)  # fmt: skip
"""Bounds of buckets in seconds; all bounds here are vLLM's, with additions."""

PER_TOKEN = (
    0.001, 0.0025, 0.005,  # additions to vLLM's, since small models are faster
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip

WHOLE = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
)  # fmt: skip


CHOICES = (1.0, 2.0, 5.0, 10.0, 20.0)


def token_bounds(most: int) -> tuple[float, ...]:
    """Return 1, 2, 5, 10, ... up to ``most``."""
    found = [float(digit * 10**power) for power in range(len(str(most))) for digit in (1, 2, 5)]
    return tuple(bound for bound in found if bound <= most)


_ENGINE = (
    Family("num_requests_running", "gauge", "Requests that have blocks of the cache and take part in steps."),
    Family("num_requests_waiting", "gauge", "Requests that wait for blocks, for adapters or for their turn."),
    Family("kv_cache_usage_perc", "gauge", "Share of the cache blocks that somebody needs; 1 is all of them."),
    Family("predicted_wait_seconds", "gauge", "Time until the first token of one more request, as predicted."),
    Family("prefix_cache_queries_total", "counter", "Tokens of prompts that were looked for in the cache."),
    Family("prefix_cache_hits_total", "counter", "Tokens of prompts that were found in the cache."),
    Family("num_preemptions_total", "counter", "How often a running request gave its blocks back and waited again."),
    Family("worker_busy_seconds_total", "counter", "Processor time of each worker, with its spinning.", ("worker",)),
    Family("worker_waiting_seconds_total", "counter", "Time that each worker was ready and had no core.", ("worker",)),
    Family("cache_config_info", "info", "How large the cache is.", ("block_size", "num_gpu_blocks", "cache_dtype")),
)

_TOKENS = (
    Family("prompt_tokens_total", "counter", "Tokens of prompts whose answers have begun."),
    Family("prompt_tokens_cached_total", "counter", "Those of them that were found in the cache."),
    Family(
        "prompt_tokens_by_source_total",
        "counter",
        "The same tokens, by whether they were computed (local_compute) or found (local_cache_hit).",
        ("source",),
    ),
    Family("generation_tokens_total", "counter", "New tokens."),
    Family("spec_decode_num_draft_tokens_total", "counter", "Guessed tokens that were verified, of ended requests."),
    Family("spec_decode_num_accepted_tokens_total", "counter", "Those of them that became part of an answer."),
    Family("time_to_first_token_seconds", "histogram", "From the head of the call to its first token."),
    Family("inter_token_latency_seconds", "histogram", "Between one token and the next; of several at once each."),
)

_REQUESTS = (
    Family("request_success_total", "counter", "Requests that have ended, by how.", ("finished_reason",)),
    Family("admission_rejections_total", "counter", "Calls that were not accepted, by why.", ("reason",)),
    Family("e2e_request_latency_seconds", "histogram", "From the head of the call to the end of the answer."),
    Family("request_queue_time_seconds", "histogram", "From submission to the first step."),
    Family("request_prefill_time_seconds", "histogram", "From the first step to the first token."),
    Family("request_decode_time_seconds", "histogram", "From the first token to the last."),
    Family("request_inference_time_seconds", "histogram", "From the first step to the last token."),
    Family("request_time_per_output_token_seconds", "histogram", "Mean time of a request's tokens after the first."),
    Family("request_prompt_tokens", "histogram", "Tokens of a request's prompt."),
    Family("request_generation_tokens", "histogram", "New tokens of a request."),
    Family("request_prefill_kv_computed_tokens", "histogram", "Tokens of a request's prompt that were computed."),
    Family("request_params_max_tokens", "histogram", "New tokens that a request allows."),
    Family("request_params_n", "histogram", "Requests of a call: its prompts times `n`."),
)

_ADAPTERS = (
    Family(
        "lora_requests_info",
        "gauge",
        "Adapters of requests that run or wait, with commas between; the value is the time of the scrape.",
        ("max_lora", "running_lora_adapters", "waiting_lora_adapters"),
    ),
    Family("lora_adapter_loaded", "gauge", "Whether an adapter is in memory.", ("adapter_name", "rank")),
    Family("lora_adapter_load_seconds", "summary", "Bringing an adapter into memory.", ("adapter_name",)),
    Family("lora_requests_in_flight", "gauge", "Requests accepted and not ended.", ("adapter_name",)),
    Family("lora_requests_total", "counter", "Requests accepted.", ("adapter_name",)),
    Family("lora_prompt_tokens_total", "counter", "Tokens of prompts.", ("adapter_name",)),
    Family("lora_generation_tokens_total", "counter", "New tokens.", ("adapter_name",)),
    Family("lora_time_to_first_token_seconds", "histogram", "As time_to_first_token_seconds.", ("adapter_name",)),
)

_TENANTS = (
    Family("tenant_requests_in_flight", "gauge", "Requests accepted and not ended.", ("tenant",)),
    Family("tenant_requests_total", "counter", "Requests accepted.", ("tenant",)),
    Family("tenant_rejections_total", "counter", "Calls with a tenant's key that were not accepted.", ("tenant",)),
    Family("tenant_prompt_tokens_total", "counter", "Tokens of prompts.", ("tenant",)),
    Family("tenant_generation_tokens_total", "counter", "New tokens.", ("tenant",)),
    Family("tenant_time_to_first_token_seconds", "histogram", "As time_to_first_token_seconds.", ("tenant",)),
)

_PROCESS = (
    Family("process_cpu_seconds_total", "counter", "Processor time, user and system."),
    Family("process_resident_memory_bytes", "gauge", "Memory in use now."),
    Family("process_start_time_seconds", "gauge", "When the process began, seconds since 1970."),
    Family("process_open_fds", "gauge", "Open files and sockets."),
    Family("process_max_fds", "gauge", "How many may be open."),
    Family("infeng_startup_seconds", "gauge", "What each phase of the start took.", ("phase",)),
    Family("infeng_build_info", "info", "What runs here.", ("version", "python_version", "model_name", "backend")),
)

FAMILIES: Mapping[str, Family] = MappingProxyType(
    {family.name: family for family in (*_ENGINE, *_TOKENS, *_REQUESTS, *_ADAPTERS, *_TENANTS, *_PROCESS)}
)
"""By name."""
