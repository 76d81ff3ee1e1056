"""`infeng bench decode`, `prefill` and `throughput`: structure and arithmetic on a tiny model."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from infeng_bench.kernels import roofline

from infeng_core.cli import main

CEILINGS = roofline.Roofline(1, 1e10, 5e9, {"avx2": 1e11, "avx512_vnni": 4e11}, 1e9, {"streams": 1, "prefetch": 0})


def bench(verb: str, out: Path, config: Path, *more: str) -> dict[str, Any]:
    """Run a verb on one thread and return its result."""
    assert main(["bench", verb, "--synthetic", str(config), "-t", "1", "--json", str(out), *more]) == 0
    loaded: dict[str, Any] = json.loads(out.read_text())
    return loaded


@pytest.mark.slow
def test_decoding_is_measured_for_every_number_of_rows_and_context(
    tiny_config: Path, tmp_path: Path, schema: Any
) -> None:
    options = ("--rows", "1,3", "--context", "16,40", "--steps", "4", "--rounds", "2", "--roofline", "none")
    result = bench("decode", tmp_path / "out.json", tiny_config, *options)
    schema(result)
    assert [line["work"] for line in result["measurements"]] == [
        f"decode:rows={rows},context={context},steps=4" for rows in (1, 3) for context in (16, 40)
    ]
    for line in result["measurements"]:
        assert line["tokens_per_s"]["min"] <= line["decode_tokens_per_s"] <= line["tokens_per_s"]["max"]
        assert "dram_fraction" not in line
    assert (result["threads"], result["seed"], result["rounds"], result["format"]) == (1, 0, 2, "int4-p32-arow-h256")
    assert result["peak_rss_bytes"] > 1 << 20
    assert result["cpu_utilization"] > 0


def test_a_step_is_compared_with_the_roofline_of_its_rows(
    tiny_config: Path, tmp_path: Path, schema: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roofline, "measure", lambda threads: CEILINGS)
    options = ("--rows", "2", "--context", "30", "--steps", "4", "--rounds", "1")
    result = bench("decode", tmp_path / "out.json", tiny_config, *options)
    schema(result)
    [line] = result["measurements"]
    nbytes = result["bytes_per_token"] + 2 * 32 * result["kv_bytes_per_position"]
    step = line["mean_itl_ms"] / 1000
    assert line["dram_fraction"] == pytest.approx(nbytes / 1e10 / step)


@pytest.mark.slow
def test_a_step_reads_the_experts_of_its_rows(moe_config: Path, tmp_path: Path, schema: Any) -> None:
    options = ("--rows", "1,3", "--context", "20", "--steps", "2", "--rounds", "1", "--roofline", "none")
    result = bench("decode", tmp_path / "out.json", moe_config, *options)
    schema(result)
    assert result["expert_share"] == 2 / 8
    whole, context = result["expert_bytes"], 21 * result["kv_bytes_per_position"]
    one, three = (line["bytes_per_step"] for line in result["measurements"])
    assert one == result["bytes_per_token"] + context
    read = 1 - (1 - 2 / 8) ** 3  # of the experts, by three rows
    assert three == pytest.approx(result["bytes_per_token"] + (read - 2 / 8) * whole + 3 * context, abs=1)
    for line in result["measurements"]:
        assert line["bytes_per_s"] == pytest.approx(
            line["bytes_per_step"] * line["tokens_per_s"]["median"] / line["rows"]
        )


def test_prefill_reports_the_time_of_every_prompts_first_token(tiny_config: Path, tmp_path: Path, schema: Any) -> None:
    options = ("--rows", "1,3", "--context", "40", "--rounds", "2", "--roofline", "none")
    result = bench("prefill", tmp_path / "out.json", tiny_config, *options)
    schema(result)
    assert [line["work"] for line in result["measurements"]] == [
        "prefill:rows=1,context=40",
        "prefill:rows=3,context=40",
    ]
    assert all(line["median_ttft_ms"] > 0 for line in result["measurements"])


def test_the_int8_ceiling_is_that_of_the_bound_kernels(
    tiny_config: Path, tmp_path: Path, schema: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roofline, "measure", lambda threads: CEILINGS)
    options = ("--context", "40", "--rounds", "1", "--set", "kernels.order=[reference]")
    result = bench("prefill", tmp_path / "out.json", tiny_config, *options)
    schema(result)
    assert "int8_fraction" not in result["measurements"][0]
    assert all(kernel["kernel"].startswith("reference/") for kernel in result["kernels"])


def test_throughput_counts_every_request_and_token(tiny_config: Path, tmp_path: Path, schema: Any) -> None:
    options = ("--requests", "7", "--input-len", "5:20", "--output-len", "3", "--seed", "4")
    result = bench("throughput", tmp_path / "out.json", tiny_config, *options)
    schema(result)
    assert (result["completed"], result["total_output_tokens"]) == (7, 21)
    assert 35 <= result["total_input_tokens"] <= 140
    assert result["request_throughput"] == pytest.approx(7 / result["duration"])
    assert result["output_throughput"] == pytest.approx(21 / result["duration"])
    total = result["total_input_tokens"] + 21
    assert result["total_token_throughput"] == pytest.approx(total / result["duration"])
    assert result["mean_ttft_ms"] <= result["mean_e2el_ms"]
    assert (result["input_len"], result["output_len"]) == ("5:20", "3")
    assert "request_rate" not in result


def test_requests_arrive_at_their_times(tiny_config: Path, tmp_path: Path, schema: Any) -> None:
    options = ("--requests", "4", "--input-len", "4", "--output-len", "2", "--rate", "100")
    result = bench("throughput", tmp_path / "out.json", tiny_config, *options)
    schema(result)
    from infeng_bench.load.kinds import Load
    from infeng_bench.load.traffic import draw

    last = draw(Load.parse("poisson:rate=100,prompt=4,output=2"), 4, 0, 256).at[-1]
    assert result["duration"] >= last
    assert result["request_rate"] == 100.0


def test_speculation_is_part_of_the_result(tiny_config: Path, tmp_path: Path, schema: Any) -> None:
    options = ("--requests", "3", "--input-len", "9", "--output-len", "40", "--temperature", "0")
    result = bench("throughput", tmp_path / "out.json", tiny_config, *options, "--set", "speculation.use=ngram")
    schema(result)
    assert result["speculate"].startswith("ngram:")
    assert result["total_output_tokens"] == 120
    assert math.isfinite(result.get("acceptance", 0.0))


def test_one_request_of_one_token_has_no_time_between_tokens(tiny_config: Path, tmp_path: Path, schema: Any) -> None:
    options = ("--requests", "1", "--input-len", "4", "--output-len", "1")
    result = bench("throughput", tmp_path / "out.json", tiny_config, *options)
    schema(result)
    assert "mean_itl_ms" not in result


@pytest.mark.parametrize("verb", ["decode", "prefill", "throughput"])
def test_verbs_print_a_table(verb: str, tiny_config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--requests", "2"] if verb == "throughput" else ["--context", "9", "--rounds", "1", "--roofline", "none"]
    assert main(["bench", verb, "--synthetic", str(tiny_config), "-t", "1", *options]) == 0
    assert "tokens/s" in capsys.readouterr().out


def test_a_model_is_given_by_its_directory(tiny_config: Path, tmp_path: Path) -> None:
    from infeng_bench.models import synthetic

    directory = synthetic.native_directory(tiny_config, "int8-row")
    options = ["--context", "9", "--rounds", "1", "--roofline", "none", "--json", str(tmp_path / "out.json")]
    assert main(["bench", "prefill", "--model", str(directory), *options]) == 0
    result = json.loads((tmp_path / "out.json").read_text())
    assert (result["model"], result["format"]) == (directory.name, "int8-row")


def test_random_weights_get_the_room_that_a_work_needs(tiny_config: Path, tmp_path: Path) -> None:
    options = ["--rows", "1,40", "--context", "300", "--steps", "2", "--rounds", "1", "--roofline", "none", "-t", "1"]
    assert main(["bench", "decode", str(tiny_config), *options, "--json", str(tmp_path / "out.json")]) == 0
    result = json.loads((tmp_path / "out.json").read_text())
    assert result["model"] == "synthetic:tiny.json@2048"
    assert [one["rows"] for one in result["measurements"]] == [1, 40]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["prefill", "--rows", "40", "--context", "4", "--set", "scheduler.max_running=8"], "scheduler.max_running=40"),
        (["throughput", "--input-len", "5-20"], "is no distribution"),
        (["throughput", "--output-len", "20:5"], "is no distribution"),
        (["throughput", "--input-len", "lognormal:x:1"], "is no distribution"),
        (["decode", "--set", "kv_cache.dtyp=f32"], "did you mean `dtype`"),
    ],
)
def test_an_error_names_the_invalid_option_and_a_remedy(
    tiny_config: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    ceilings = [] if arguments[0] == "throughput" else ["--roofline", "none"]
    assert main(["bench", *arguments, "--synthetic", str(tiny_config), "-t", "1", *ceilings]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("rate", ["0", "-1", "often", "nan"])
def test_a_rate_is_a_number_above_zero(rate: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["bench", "throughput", f"--rate={rate}"])
    assert caught.value.code == 2
    assert "requests a second" in capsys.readouterr().err
