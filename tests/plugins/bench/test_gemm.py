"""`infeng bench gemm`: structure and arithmetic on tiny shapes."""

import csv
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from infeng_bench.kernels import linears, roofline
from infeng_bench.models import shapes
from infeng_bench.models.model_shape import ModelShape
from infeng_peers import oracles

from infeng_core.cli import main
from infeng_core.formats.quant import builtin_format

FAKE = Path(__file__).parents[1] / "peers" / "fake_oracle.py"
CEILINGS = roofline.Roofline(1, 1e10, 5e9, {"avx2": 1e11, "avx512_vnni": 4e11}, 1e9, {"streams": 1, "prefetch": 0})


def gemm(out: Path, config: Path, *more: str) -> dict[str, Any]:
    """Run the verb on one thread and return its result."""
    command = ["bench", "gemm", "--synthetic", str(config), "-t", "1", "--rounds", "2", "--json", str(out), *more]
    assert main(command) == 0
    loaded: dict[str, Any] = json.loads(out.read_text())
    return loaded


def test_every_linear_is_measured_at_every_number_of_rows(tiny_config: Path, tmp_path: Path, schema: Any) -> None:
    result = gemm(tmp_path / "out.json", tiny_config, "--rows", "1,5", "--roofline", "none")
    schema(result)
    found = [(line["linear"], line["n"], line["k"], line["rows"]) for line in result["measurements"]]
    assert found == [
        (name, n, k, rows)
        for name, n, k in (
            ("layers.*.qkv_proj", 128, 64),
            ("layers.*.o_proj", 64, 64),
            ("layers.*.gate_up_proj", 256, 64),
            ("layers.*.down_proj", 64, 128),
            ("lm_head", 320, 64),
        )
        for rows in (1, 5)
    ]
    for line in result["measurements"]:
        macs = line["rows"] * line["n"] * line["k"]
        assert line["gmacs_per_s"] == pytest.approx(macs / line["seconds"]["median"] / 1e9)
        assert line["kernel"] in result["kernels"]
        assert line["format"] == "int4-p32-arow-h256"
    assert (result["model"], result["format"], result["threads"]) == ("synthetic:tiny.json", "int4-p32-arow-h256", 1)


def test_fractions_compare_with_the_ceiling_of_the_kernels_own_instructions(
    tiny_config: Path, tmp_path: Path, schema: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roofline, "measure", lambda threads: CEILINGS)
    result = gemm(tmp_path / "out.json", tiny_config, "--rows", "4", "--linear", "down_proj", "--kernel", "reference")
    schema(result)
    [line] = result["measurements"]
    nbytes = 4 * builtin_format("int4-p32").panel_bytes(128)
    assert line["kernel"].startswith("reference/")
    assert line["dram_fraction"] == pytest.approx(nbytes / 1e10 / line["seconds"]["median"])
    assert "int8_fraction" not in line  # the reference uses none of the instructions that have a ceiling
    assert result["roofline"]["dram_bytes_per_s"] == 1e10


def test_all_accepting_kernels_are_measured_in_turn(tiny_config: Path, tmp_path: Path) -> None:
    options = ("--rows", "1", "--linear", "o_proj", "--roofline", "none")
    chosen = gemm(tmp_path / "out.json", tiny_config, *options)["kernels"]
    every = gemm(tmp_path / "out.json", tiny_config, *options, "--kernel", "all,reference")["kernels"]
    assert set(chosen) <= set(every)
    assert any(name.startswith("reference/") for name in every)


@pytest.mark.slow
def test_a_library_of_close_results_is_measured_beside_the_engines_choice(tmp_path: Path, tiny_config: Path) -> None:
    options = ("--rows", "4,128", "--linear", "down_proj", "--format", "f32", "--peer", "onednn")
    lines = gemm(tmp_path / "out.json", tiny_config, *options)["measurements"]
    kernels = [(line["rows"], line["kernel"].partition("/")[0]) for line in lines]
    [few, many, peer] = kernels
    assert (few[0], many[0]) == (4, 128) and "onednn" not in (few[1], many[1]), "the engine's own choice"
    assert peer == (128, "onednn"), "it takes no range of few rows"


def test_a_library_that_takes_no_size_is_said(
    tmp_path: Path, tiny_config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--linear", "down_proj", "--format", "f32", "--peer", "onednn", "--roofline", "none")
    gemm(tmp_path / "few.json", tiny_config, "--rows", "4", *options)
    assert "onednn: it takes none of these rows" in "".join(capsys.readouterr())
    gemm(tmp_path / "many.json", tiny_config, "--rows", "128", *options)
    assert "it takes none" not in "".join(capsys.readouterr())


@pytest.mark.parametrize("format", ["f32", "int4-p32-a128-h64"])
def test_other_formats_are_measured_too(tiny_config: Path, tmp_path: Path, format: str) -> None:
    result = gemm(tmp_path / "out.json", tiny_config, "--rows", "2", "--format", format, "--roofline", "none")
    assert format in {line["format"] for line in result["measurements"]} <= {format, "int8-row"}


def test_the_history_table_has_a_line_per_measurement(tiny_config: Path, tmp_path: Path) -> None:
    gemm(tmp_path / "o.json", tiny_config, "--rows", "1", "--roofline", "none", "--csv", str(tmp_path / "o.csv"))
    with (tmp_path / "o.csv").open(newline="") as file:
        assert [line["n"] for line in csv.DictReader(file)] == ["128", "64", "256", "64", "320"]


def test_verbs_print_a_table(tiny_config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gemm(tmp_path / "out.json", tiny_config, "--rows", "1", "--roofline", "none")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:4] == ["linear", "n", "x", "k"]
    assert len(lines) == 6


def test_weight_copies_fill_the_models_bytes_and_fewer_for_large_batches() -> None:
    config = shapes.model_config("tinyllama-1.1b")
    formats = dict.fromkeys(
        [f"layers.{i}.{name}" for i in range(22) for name in ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")]
        + ["embed", "lm_head"],
        "int4-g64",
    )
    found = linears.linears(ModelShape("tinyllama", config, formats), builtin_format)
    assert [(linear.name, linear.count) for linear in found][-2:] == [("layers.*.down_proj", 22), ("lm_head", 1)]
    total = sum(linear.nbytes * linear.count for linear in found)
    assert 540e6 < total < 560e6
    down = found[-2]
    assert linears.copies_for(down, 1, total) == -(-total // down.nbytes)
    assert linears.copies_for(down, 1024, total) == 2**35 // (1024 * 2048 * 5632)
    assert linears.copies_for(down, 1 << 20, total) == 1


def test_a_tied_embedding_is_measured_as_the_head() -> None:
    config = shapes.model_config("smollm2-135m")
    names = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")
    formats = dict.fromkeys([f"layers.{i}.{name}" for i in range(30) for name in names], "int4-g64")
    found = linears.linears(ModelShape("smol", config, {**formats, "embed": "int8-row"}), builtin_format)
    assert (found[-1].name, found[-1].n, found[-1].k) == ("embed", 49152, 576)


def test_an_oracle_is_measured_in_turn(
    tiny_config: Path, tmp_path: Path, schema: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(oracles.SCRIPTS, "torch", str(FAKE))
    against = ("--against", "torch", "--oracle-python", sys.executable)
    result = gemm(
        tmp_path / "out.json", tiny_config, "--rows", "3", "--linear", "o_proj", "--roofline", "none", *against
    )
    schema(result)
    ours, theirs = result["measurements"]
    assert "oracle" not in ours
    assert (theirs["kernel"], theirs["oracle"], theirs["seconds"]["median"]) == ("torch/f32", True, 0.25)
    assert theirs["gmacs_per_s"] == pytest.approx(3 * 64 * 64 / 0.25 / 1e9)
    assert result["oracles"] == {"torch": "0"}


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["--linear", "down_prj"], 2, "did you mean `down_proj`"),
        (["--kernel", "avx1024"], 1, "no kernel library avx1024"),
        (["--format", "int4-g46"], 1, "did you mean `int4-g64`"),
        (["--model", "also"], 2, "exclude each other"),
        (["--against", "tensorflow"], 2, "no such oracle"),
        (["--against", "torch", "--oracle-python", "/missing/python"], 2, "it is not there"),
        (["--against", "torch"], 1, "infeng bench peers install transformers"),
        (["--roofline", "missing.json"], 2, "no such file"),
    ],
)
def test_an_error_names_the_invalid_option_and_a_remedy(
    attempt: Any, arguments: list[str], status: int, said: str
) -> None:
    ceilings = [] if "--roofline" in arguments else ["--roofline", "none"]
    ended, told = attempt("gemm", *ceilings, *arguments)
    assert (ended, said in told) == (status, True)


def test_no_model_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "gemm"]) == 2
    assert "--synthetic NAME" in capsys.readouterr().err


def test_an_unknown_model_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "gemm", "--synthetic", "smolm2-135m", "--roofline", "none"]) == 2
    assert "did you mean `smollm2-135m`" in capsys.readouterr().err
