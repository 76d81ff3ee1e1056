"""Metrics: what records and a real engine become when somebody scrapes."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from infeng_demo import model_dir
from infeng_serve.observability import workers
from infeng_serve.observability.exposition import wants_openmetrics
from infeng_serve.observability.families import FAMILIES
from infeng_serve.observability.load import load_values
from infeng_serve.observability.metrics import Metrics
from infeng_serve.observers import Observer, Record
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text

from infeng_core.api import Engine, SamplingParams
from infeng_core.api.servers import StartupTimes

MakeRecord = Callable[..., Record]
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]

GREEDY = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)


def samples(rendered: bytes, read: Any = read_text) -> Samples:
    """Return every value by its name and labels, as Prometheus' own parser reads them."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in read(rendered.decode())
        for sample in family.samples
    }


def value(metrics: Metrics, name: str, **labels: str) -> float:
    """Return one value, whatever other labels it has."""
    return value_of(samples(metrics.render(False)), name, **labels)


def value_of(found: Samples, name: str, **labels: str) -> float:
    matching = [v for (n, of), v in found.items() if n == name and labels.items() <= dict(of).items()]
    assert len(matching) == 1, f"{len(matching)} of {name} {labels}"
    return matching[0]


def serve(metrics: Observer, record: Record, tokens: int = 5) -> Record:
    """Take a record through its life: tokens at equal distances."""
    metrics.accepted(record)
    first, last, record.last_token = record.first_token, record.last_token, 0.0
    for number in range(tokens):
        now = first + (last - first) * number / max(1, tokens - 1)
        metrics.tokens(record, 1, now)
        record.last_token = now
    metrics.ended(record)
    return record


@pytest.fixture
def metrics(engine: Engine) -> Metrics:
    return Metrics(engine, "demo")


@pytest.fixture
def busy(engine: Engine, finished: MakeRecord, monkeypatch: pytest.MonkeyPatch) -> Metrics:
    """Metrics that have something to tell of every family; the engine has no thread of its own here."""
    monkeypatch.setattr(workers, "times", lambda: {"0": workers.Times(1.5, 0.25)})
    engine.generate(["Once upon a time there was a lion"] * 2, GREEDY, adapters=[None, "bard"])
    started = StartupTimes(0.5)
    started.record("imports")
    metrics = Metrics(engine, 'a "model" with \\ and\nmore', startup=started)
    serve(metrics, finished())
    serve(metrics, finished(adapter="bard", tenant=""))
    metrics.rejected(finished(), "overloaded")
    return metrics


# ------------------------------------------------------------------------------------------------------- formats ---


def test_prometheus_parsers_read_the_same_values_from_both_formats(busy: Metrics):
    text, openmetrics = samples(busy.render(False)), samples(busy.render(True), read_openmetrics)
    assert text.keys() == openmetrics.keys() and len(text) > 200
    changing = {"process_cpu_seconds_total", "process_resident_memory_bytes", "infeng:lora_requests_info"}
    assert {key: v for key, v in text.items() if key[0] not in changing} == {
        key: v for key, v in openmetrics.items() if key[0] not in changing
    }
    assert busy.render(True).endswith(b"\n# EOF\n") and b"# EOF" not in busy.render(False)


def test_every_family_is_rendered_with_its_kind_and_labels(busy: Metrics):
    found = {family.name: family for family in read_text(busy.render(False).decode())}
    for family in FAMILIES.values():
        own = family.name.startswith(("process_", "infeng_"))
        name = family.name if own else f"infeng:{family.name}"
        shown = found[name.removesuffix("_total")]  # as the parser calls counters
        assert shown.type == {"info": "gauge"}.get(family.kind, family.kind), name
        assert shown.documentation == family.help
        labels = {label for sample in shown.samples for label in sample.labels} - {"le"}
        assert labels == {*family.labels, *(() if own else ("model_name",))}, name
    assert len(found) == len(FAMILIES)


def test_label_values_survive_escaping(busy: Metrics):
    assert value(busy, "infeng:num_requests_running", model_name='a "model" with \\ and\nmore') == 0


def test_promtool_finds_no_fault_but_the_colon_in_names(busy: Metrics):
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed: it is in Debian's package prometheus")
    done = subprocess.run(["promtool", "check", "metrics"], input=busy.render(False), capture_output=True, check=False)
    said = (done.stdout + done.stderr).decode().splitlines()
    assert [line for line in said if "metric names should not contain ':'" not in line] == []
    assert done.returncode in (0, 3)


@pytest.mark.parametrize(
    ("accept", "openmetrics"),
    [
        ("", False),
        ("*/*", False),
        ("text/plain", False),
        ("application/openmetrics-text", True),
        ("application/openmetrics-text; version=1.0.0; charset=utf-8", True),
        ("application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5", False),
        ("application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1", True),
        ("application/openmetrics-text;q=0.2,text/plain;q=0.5", False),
        ("application/openmetrics-text;q=0", False),
        ("application/openmetrics-text;q=x", False),
    ],
)
def test_the_accept_header_chooses_the_format(accept: str, openmetrics: bool):
    assert wants_openmetrics(accept) is openmetrics


# -------------------------------------------------------------------------------------------------------- counts ---


def test_token_counts_and_times_match_the_record(metrics: Metrics, finished: MakeRecord):
    serve(metrics, finished())
    found = samples(metrics.render(False))
    expected = {
        "infeng:prompt_tokens_total": 40,
        "infeng:prompt_tokens_cached_total": 16,
        "infeng:generation_tokens_total": 5,
        "infeng:time_to_first_token_seconds_sum": 1.5,
        "infeng:inter_token_latency_seconds_sum": 0.8,
        "infeng:inter_token_latency_seconds_count": 4,
        "infeng:e2e_request_latency_seconds_sum": 2.5,
        "infeng:request_queue_time_seconds_sum": 0.4,
        "infeng:request_prefill_time_seconds_sum": 1.0,
        "infeng:request_decode_time_seconds_sum": 0.8,
        "infeng:request_inference_time_seconds_sum": 1.8,
        "infeng:request_time_per_output_token_seconds_sum": 0.2,
        "infeng:request_prompt_tokens_sum": 40,
        "infeng:request_generation_tokens_sum": 5,
        "infeng:request_params_max_tokens_sum": 64,
        "infeng:tenant_time_to_first_token_seconds_sum": 1.5,
        "infeng:lora_generation_tokens_total": 5,
    }
    assert {name: value_of(found, name) for name in expected} == pytest.approx(expected)


def test_a_value_on_a_bound_is_in_the_bucket_of_that_bound(metrics: Metrics, finished: MakeRecord):
    serve(metrics, finished(arrived=101.0, first_token=101.5), tokens=1)
    found = samples(metrics.render(False))
    name = "infeng:time_to_first_token_seconds_bucket"
    assert [value_of(found, name, le=bound) for bound in ("0.25", "0.5", "0.75", "+Inf")] == [0, 1, 1, 1]


def test_tokens_of_one_step_share_the_time_since_the_last(metrics: Metrics, make_record: MakeRecord):
    record = make_record()
    metrics.accepted(record)
    metrics.tokens(record, 3, 101.0)  # the first step: no token before them
    record.last_token = 101.0
    metrics.tokens(record, 4, 101.32)
    metrics.tokens(record, 0, 103.0)
    found = samples(metrics.render(False))
    assert value_of(found, "infeng:generation_tokens_total") == 7
    assert value_of(found, "infeng:time_to_first_token_seconds_count") == 1
    assert value_of(found, "infeng:inter_token_latency_seconds_count") == 4
    assert value_of(found, "infeng:inter_token_latency_seconds_sum") == pytest.approx(0.32)
    assert value_of(found, "infeng:inter_token_latency_seconds_bucket", le="0.1") == 4


def test_only_complete_answers_count_in_the_times_of_requests(metrics: Metrics, finished: MakeRecord):
    for reason in ("length", "tool_calls", "cancelled", "timeout", "error", "something new"):
        serve(metrics, finished(finish_reason=reason))
    assert value(metrics, "infeng:e2e_request_latency_seconds_count") == 2
    found = samples(metrics.render(False))
    counts = {
        reason: value_of(found, "infeng:request_success_total", finished_reason=reason)
        for reason in ("stop", "length", "tool_calls", "cancelled", "timeout", "error")
    }
    assert counts == {"stop": 0, "length": 1, "tool_calls": 1, "cancelled": 1, "timeout": 1, "error": 2}


def test_a_request_that_never_started_has_no_prompt_computed_and_is_in_flight_no_more(
    metrics: Metrics, make_record: MakeRecord
):
    record = make_record(prompt_tokens=40)
    metrics.accepted(record)
    assert value(metrics, "infeng:tenant_requests_in_flight", tenant="acme") == 1
    record.finish_reason, record.ended = "cancelled", 101.0
    metrics.ended(record)
    assert value(metrics, "infeng:prompt_tokens_total") == 0
    assert value(metrics, "infeng:tenant_requests_in_flight", tenant="acme") == 0
    assert value(metrics, "infeng:tenant_requests_total", tenant="acme") == 1


def test_the_end_of_a_request_that_was_never_accepted_is_ignored(metrics: Metrics, finished: MakeRecord):
    metrics.ended(finished())
    assert value(metrics, "infeng:tenant_requests_in_flight", tenant="acme") == 0


def test_rejections_are_counted_by_a_bounded_number_of_reasons(metrics: Metrics, make_record: MakeRecord):
    assert value(metrics, "infeng:admission_rejections_total", reason="overloaded") == 0
    for number in range(50):
        metrics.rejected(make_record(tenant="acme" if number % 2 else ""), f"reason {number}")
    metrics.rejected(make_record(), "overloaded")
    found = samples(metrics.render(False))
    counts = [v for (name, _), v in found.items() if name == "infeng:admission_rejections_total"]
    assert len(counts) == 33 and sum(counts) == 51
    assert value_of(found, "infeng:admission_rejections_total", reason="other") == 50 - 25
    assert value_of(found, "infeng:tenant_rejections_total", tenant="acme") == 26


def test_a_bounded_number_of_tenants_is_told_apart(engine: Engine, finished: MakeRecord):
    metrics = Metrics(engine, "demo", most_tenants=3)
    for number in range(10):
        serve(metrics, finished(tenant=f"t{number}"))
    serve(metrics, finished(tenant="t1"))
    found = samples(metrics.render(False))
    totals = {dict(of)["tenant"]: v for (name, of), v in found.items() if name == "infeng:tenant_requests_total"}
    assert totals == {"t0": 1, "t1": 2, "t2": 1, "other": 7}


def test_adapters_that_were_unloaded_make_room_for_others(engine: Engine, finished: MakeRecord):
    metrics = Metrics(engine, "demo", most_adapters=2)
    for name in ("gone", "late", "bard"):
        serve(metrics, finished(adapter=name))
    running = finished(adapter="late")
    metrics.accepted(running)
    serve(metrics, finished(adapter="bard+coder"))

    def counted() -> dict[str, float]:
        found = samples(metrics.render(False))
        return {dict(of)["adapter_name"]: v for (name, of), v in found.items() if name == "infeng:lora_requests_total"}

    assert counted() == {"late": 2, "other": 2}  # late has one in flight
    metrics.ended(running)
    serve(metrics, finished(adapter="bard"))
    assert counted() == {"bard": 1, "other": 2}
    serve(metrics, finished())
    assert counted() == {"bard": 1, "base": 1, "other": 2}


def test_requests_that_combine_adapters_are_one_group(metrics: Metrics, finished: MakeRecord):
    for names in ("bard+coder", "coder+bard"):
        serve(metrics, finished(adapter=names))
    assert value(metrics, "infeng:lora_requests_total", adapter_name="combined") == 2


# -------------------------------------------------------------------------------------------- what the engine says ---


def test_gauges_show_the_engines_state_at_the_scrape(engine: Engine, metrics: Metrics):
    prompt = "A long story, so that it fills some blocks of the cache: once upon a time there was a lion."
    engine.generate([prompt] * 2, GREEDY, adapters=["bard", "coder"])  # which brings them into memory
    streams = [engine.submit(prompt, GREEDY, adapter=adapter) for adapter in (None, "bard", "coder")]
    assert value(metrics, "infeng:num_requests_waiting") == 3
    engine.step()
    found = samples(metrics.render(False))
    assert value_of(found, "infeng:num_requests_running") == 3
    assert 0 < value_of(found, "infeng:kv_cache_usage_perc") < 1
    [info] = [dict(of) for name, of in found if name == "infeng:lora_requests_info"]
    assert info["running_lora_adapters"] == "bard,coder" and info["max_lora"] == "32768"
    [at] = [v for (name, _), v in found.items() if name == "infeng:lora_requests_info"]
    assert abs(at - time.time()) < 60
    rank = str(engine.adapters["bard"].rank)
    assert value_of(found, "infeng:lora_adapter_loaded", adapter_name="bard", rank=rank) == 1
    assert value_of(found, "infeng:lora_adapter_load_seconds_count", adapter_name="bard") == 1
    assert value_of(found, "infeng:lora_adapter_load_seconds_sum", adapter_name="bard") > 0
    assert load_values(engine)["running"] == 3 == load_values(engine)["server_load"]
    for stream in streams:
        stream.result()
    assert value(metrics, "infeng:num_requests_running") == 0
    assert value(metrics, "infeng:prefix_cache_queries_total") >= value(metrics, "infeng:prefix_cache_hits_total") > 0


def test_adapters_beyond_the_bound_are_counted_together(engine: Engine):
    metrics = Metrics(engine, "demo", most_adapters=1)
    engine.generate(["a"] * 2, GREEDY, adapters=["bard", "coder"])
    found = samples(metrics.render(False))
    assert value_of(found, "infeng:lora_adapter_loaded", adapter_name="bard") == 1
    assert value_of(found, "infeng:lora_adapter_loaded", adapter_name="other") == 1


def test_the_resources_of_the_process_are_reported(metrics: Metrics):
    found = samples(metrics.render(False))
    assert value_of(found, "process_resident_memory_bytes") > 1e7
    assert value_of(found, "process_cpu_seconds_total") > 0.1
    assert time.time() - 86400 < value_of(found, "process_start_time_seconds") < time.time()
    assert 0 < value_of(found, "process_open_fds") < value_of(found, "process_max_fds")
    assert value_of(found, "infeng_build_info", model_name="demo", backend="native") == 1


def test_each_worker_has_its_processor_time():
    with Engine(str(model_dir()), overrides={"threads.count": 2}) as engine:
        metrics = Metrics(engine, "demo")
        engine.submit("Once upon a time", GREEDY)
        engine.start()
        before = value(metrics, "infeng:worker_busy_seconds_total", worker="1")
        engine.submit("Once upon a time " * 40, GREEDY).result()
        found = samples(metrics.render(False))
        workers = {dict(of)["worker"] for name, of in found if name == "infeng:worker_busy_seconds_total"}
        assert {"0", "1"} <= workers
        assert value_of(found, "infeng:worker_busy_seconds_total", worker="1") > before >= 0
        assert value_of(found, "infeng:worker_busy_seconds_total", worker="0") > 0
        assert value_of(found, "infeng:worker_waiting_seconds_total", worker="0") >= 0


def test_a_system_that_counts_nothing_leaves_the_workers_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(workers, "_TASKS", tmp_path / "none")
    assert workers.times() == {}
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "comm").write_text("infeng-3\n")
    monkeypatch.setattr(workers, "_TASKS", tmp_path)
    assert workers.times() == {}  # a kernel without statistics of threads
    (tmp_path / "7" / "schedstat").write_text("2000000000 500000000 9\n")
    assert workers.times() == {"3": workers.Times(2.0, 0.5)}


def test_with_the_prefix_vllm_names_labels_and_reasons_are_vllms(engine: Engine, finished: MakeRecord):
    metrics = Metrics(engine, "demo", prefix="vllm")
    for reason in ("stop", "tool_calls", "cancelled", "timeout"):
        serve(metrics, finished(finish_reason=reason))
    found = samples(metrics.render(False))
    assert not any(name.startswith("infeng:") for name, _ in found)
    assert value_of(found, "vllm:num_requests_running", model_name="demo", engine="0") == 0
    assert value_of(found, "vllm:request_success_total", finished_reason="abort") == 2
    assert value_of(found, "vllm:request_success_total", finished_reason="stop") == 2


def test_guesses_choices_and_computed_prompts_are_counted(engine: Engine, finished: MakeRecord):
    metrics = Metrics(engine, "demo", prefix="vllm")
    record = finished(prompt_tokens=10, cached_tokens=4)
    record.drafted_tokens, record.accepted_tokens, record.requests = 7, 5, 3
    serve(metrics, record)
    serve(metrics, finished(prompt_tokens=10, cached_tokens=0))
    assert value(metrics, "vllm:spec_decode_num_draft_tokens_total") == 7
    assert value(metrics, "vllm:spec_decode_num_accepted_tokens_total") == 5
    assert value(metrics, "vllm:prompt_tokens_by_source_total", source="local_compute") == 16
    assert value(metrics, "vllm:prompt_tokens_by_source_total", source="local_cache_hit") == 4
    assert value(metrics, "vllm:request_prefill_kv_computed_tokens_sum") == 16
    assert value(metrics, "vllm:request_params_n_sum") == 3
    assert value(metrics, "vllm:request_params_n_count") == 1
