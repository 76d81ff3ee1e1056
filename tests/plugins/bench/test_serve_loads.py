"""`infeng bench serve --http --load`: loads on an engine of this process, and on the same behind HTTP."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from infeng_bench.http import completions
from infeng_bench.http.answer import Answer
from infeng_bench.http.overhead_figures import IN_PROCESS, SERVED
from infeng_bench.load.kinds import Load
from infeng_bench.load.outcomes import Outcomes
from infeng_bench.load.requests import Job, Reply
from infeng_bench.load.traffic import draw

from infeng_core.cli import main

pytest.importorskip("infeng_serve", reason="the serve wheel is not installed")


@pytest.fixture
def measured(tiny_config: Path, tmp_path: Path, schema: Any, capsys: pytest.CaptureFixture[str]) -> Any:
    """Return ``measured(load, *options)``: the figures of both sides, of a result that keeps to the schema."""

    def measure(load: str, *options: str) -> tuple[dict[str, Any], dict[str, Any]]:
        out = tmp_path / "out.json"
        model = ["--synthetic", str(tiny_config), "-t", "1", "--timeout", "60"]
        assert main(["bench", "serve", "--http", "--load", load, *model, "--json", str(out), *options]) == 0
        result = json.loads(out.read_text())
        schema(result)
        assert result["kind"] == "serve-load"
        assert list(result["sides"]) == [IN_PROCESS, SERVED]
        shown = capsys.readouterr().out.splitlines()
        assert shown[0].startswith(load.partition(":")[0]), "the load with all keys"
        assert shown[1].split() == [IN_PROCESS, SERVED]
        assert len(shown) > 4
        return result["sides"][IN_PROCESS], result["sides"][SERVED]

    return measure


@pytest.mark.slow
def test_overload_refuses_requests_loses_none_and_still_answers_health(measured: Any) -> None:
    load = "overload:seconds=0.5,rate=600,waiting=2,prompt=8,output=60"
    inside, outside = measured(load, "--set", "scheduler.max_running=2")
    for side in (inside, outside):
        assert (side["request_rate"], side["lost"]) == (600, 0)
        assert side["answered"] + side["refused"] == 300
        assert min(side["answered"], side["refused"]) > 0
        assert 0 < side["p50_refusal_ms"] <= side["p99_refusal_ms"] <= side["max_refusal_ms"]
        assert min(side["memory_first_quarter_bytes"], side["memory_last_quarter_bytes"]) > 1 << 20
    assert outside["p99_health_ms"] > 0
    assert 0 < outside["client_cpu_share"] < 1
    assert "p99_health_ms" not in inside


@pytest.mark.slow
def test_a_disconnected_request_frees_its_blocks_within_a_few_steps(measured: Any) -> None:
    inside, outside = measured("leave:rounds=2,prompt=240", "--set", "scheduler.max_batch_tokens=16")
    for side in (inside, outside):
        for phase in ("decode", "prefill"):
            if side[f"{phase}_rounds"]:  # a step takes less here than a busy machine takes to look
                assert 0 <= side[f"median_{phase}_steps"] <= side[f"max_{phase}_steps"]


@pytest.mark.slow
def test_tenants_are_compared_with_running_alone_and_with_first_come(measured: Any) -> None:
    pytest.importorskip("infeng_fair", reason="the fair wheel is not installed")
    inside, outside = measured("tenants:greedy=3,others=2,rate=200,prompt=8,output=6", "--requests", "60")
    for side in (inside, outside):
        assert side["victim_p99_ttft_ratio"] == pytest.approx(side["beside_p99_ttft_ms"] / side["alone_p99_ttft_ms"])
        assert 0 < side["jain"] <= 1
        assert (side["completed"], side["lost"], side["fcfs_lost"]) == (60, 0, 0)
        ratio = side["request_throughput"] / side["fcfs_request_throughput"]
        assert side["throughput_over_fcfs"] == pytest.approx(ratio)


@pytest.mark.slow
def test_adapters_are_measured_all_resident_and_half_resident(measured: Any) -> None:
    load = "zipf:adapters=4,rate=100,prompt=8,output=4"
    for side in measured(load, "--requests", "24", "--rank", "4", "--targets", "qv"):
        assert side["ttft_ratio"] == pytest.approx(side["half_median_ttft_ms"] / side["resident_median_ttft_ms"])


@pytest.mark.slow
def test_a_prefill_is_measured_beside_streams(measured: Any) -> None:
    for side in measured("pace:rows=2,prompt=100,step=1,rounds=1", "--set", "scheduler.max_batch_tokens=32"):
        assert 0 < side["median_itl_ms"] <= side["p99_itl_ms"]
        assert side["prefill_loss"] < 1
        assert side["decode_tokens_per_s"] > 0


@pytest.mark.slow
def test_a_prefix_is_measured_computed_in_memory_and_on_disk_after_a_restart(measured: Any) -> None:
    inside, outside = measured("prefix:prompt=160,rounds=2")
    for side in (inside, outside):
        assert min(side["cold_ttft_ms"], side["hit_ttft_ms"], side["saved_ttft_ms"]) > 0
    assert inside["prefix_bytes"] == outside["prefix_bytes"] > 0
    assert outside["saved_bytes"] > 2 * outside["prefix_bytes"], "both prompts were saved when the server ended"


@pytest.mark.slow
def test_a_rate_of_auto_is_a_share_of_the_closed_loop_rate(measured: Any) -> None:
    inside, outside = measured("poisson:load=0.5,prompt=8,output=8", "--requests", "40")
    assert inside["completed"] == outside["completed"] == 40
    assert outside["client_lag_p99_ms"] < 1000


def answered(job: Job, status: int, left: int, body: bytes) -> Reply:
    """Return what becomes of a request whose answer came a second after it, with ``left`` bytes missing."""
    answer = Answer(Reply(job, job.at, times=[job.at + 1]), b"")
    length = len(body) + left
    answer.add(b"HTTP/1.1 %d OK\r\nContent-Length: %d\r\n\r\n" % (status, length) + body, job.at + 1)
    answer.reply.ended = job.at + 1
    completions.wire("m", streams=False, mark=b"x").read(answer.reply, answer)
    return answer.reply


def test_an_answer_with_another_number_of_tokens_counts_as_lost() -> None:
    traffic = draw(Load.parse("poisson:rate=1,prompt=4,output=3"), 4, 0, 64)
    usage = b'{"usage":{"completion_tokens":%d}}'
    ends = [(200, 0, usage % 3), (200, 0, usage % 2), (200, 9, usage % 3), (503, 0, b"{}")]
    found = Outcomes.of([answered(job, *end) for job, end in zip(traffic.jobs(99), ends, strict=True)], traffic)
    assert found.is_done.tolist() == [True, False, False, False]
    assert found.refused == {"gave 2 tokens where 3 were asked for": 1, "cut short": 1, "http 503": 1}
    assert found.refusals == [pytest.approx(1.0)]
    assert (found.first - found.arrived)[0] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--http", "--load", "pace", "--clients", "2"], "leave --clients"),
        (["--http", "--load", "prefix"], "give --synthetic NAME or --model PATH"),
        (["--load", "pace:rows=2", "--url", "http://localhost:1"], "infeng bench serve --http"),
        (["--http", "--load", "pace:row=2"], "did you mean `rows`?"),
    ],
)
def test_an_error_names_the_invalid_option_and_a_remedy(
    capsys: pytest.CaptureFixture[str], options: list[str], said: str
) -> None:
    assert main(["bench", "serve", *options]) == 2
    assert said in capsys.readouterr().err
