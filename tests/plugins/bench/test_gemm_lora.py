"""`infeng bench gemm-lora`: structure and arithmetic on tiny shapes, and what the three ways compute."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from infeng_bench.kernels import linears, lora_linears, programs
from infeng_bench.models import shapes
from infeng_bench.models.model_shape import ModelShape

from infeng_core import _native
from infeng_core.cli import main
from infeng_core.formats.quant import builtin_format
from infeng_core.plug.assembly import load_config


def gemm_lora(folder: Path, config: Path, *more: str) -> dict[str, Any]:
    """Run the verb on one thread and return its result."""
    out = folder / "out.json"
    small = ("-t", "1", "--rounds", "2", "--table", str(folder / "table.csv"))
    assert main(["bench", "gemm-lora", "--synthetic", str(config), *small, "--json", str(out), *more]) == 0
    loaded: dict[str, Any] = json.loads(out.read_text())
    return loaded


def rows_of(path: Path) -> list[dict[str, str]]:
    """Return the lines of a table."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_every_linear_is_measured_for_all_rows_ranks_and_storages(
    tiny_config: Path, tmp_path: Path, schema: Any
) -> None:
    options = ("--rows", "1,5", "--ranks", "4,20", "--storage", "int8,bf16", "--adapters", "2")
    result = gemm_lora(tmp_path, tiny_config, *options)
    schema(result)
    found = [(line["linear"], line["rows"], line["storage"], line["rank"]) for line in result["measurements"]]
    assert found == [
        (f"layers.*.{name}", rows, storage, rank)
        for name in ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")
        for rows in (1, 5)
        for storage in ("int8", "bf16")
        for rank in (4, 20)
    ]
    for line in result["measurements"]:
        macs = line["rows"] * line["n"] * line["k"]
        assert line["gmacs_per_s"] == pytest.approx(macs / line["fused_seconds"]["median"] / 1e9)
        assert line["adapters"] == min(line["rows"], 2)
        assert set(line["kernels"]) == {"linear", "shrink", "epilogue"}
        assert set(line["kernels"].values()) <= set(result["kernels"])


def test_the_taxes_are_medians_of_interleaved_measurements(
    tiny_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readings = [[1.0, 2.0, 4.0], [1.5, 2.2, 5.0], [2.0, 6.0, 8.4]]
    monkeypatch.setattr(programs, "readings", lambda ours, rounds: readings[: len(ours)])
    result = gemm_lora(tmp_path, tiny_config, "--rows", "2", "--ranks", "4", "--linear", "o_proj")
    [line] = result["measurements"]
    assert line["lora_tax"] == pytest.approx(0.25)  # of 0.5, 0.1 and 0.25
    assert line["unfused_tax"] == pytest.approx(1.1)
    assert (line["base_seconds"]["median"], line["fused_seconds"]["median"]) == (2.0, 2.2)


def test_lines_are_appended_to_the_table(tiny_config: Path, tmp_path: Path) -> None:
    options = ("--rows", "1", "--linear", "o_proj,down_proj")
    gemm_lora(tmp_path, tiny_config, *options, "--ranks", "4")
    gemm_lora(tmp_path, tiny_config, *options, "--ranks", "8")
    lines = rows_of(tmp_path / "table.csv")
    assert [(line["linear"], line["rank"]) for line in lines] == [
        (f"layers.*.{name}", rank) for rank in ("4", "8") for name in ("o_proj", "down_proj")
    ]
    assert all(line["cpu"] and line["time"] and line["kernels.shrink"] for line in lines)
    assert all(float(line["fused_seconds.median"]) > 0 for line in lines)


def test_the_table_lies_in_reports_by_default(
    tiny_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    options = ("-t", "1", "--rounds", "1", "--rows", "1", "--ranks", "4", "--linear", "o_proj")
    assert main(["bench", "gemm-lora", "--synthetic", str(tiny_config), *options]) == 0
    assert len(rows_of(tmp_path / "reports" / "gemm_lora.csv")) == 1
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].split()[:4] == ["linear", "n", "x", "k"]
    assert shown[-1] == "appended to reports/gemm_lora.csv"


@pytest.mark.parametrize("storage", ["int8", "bf16", "f32"])
@pytest.mark.parametrize("format", ["int4-g64", "f32"])
def test_fused_and_unfused_kernels_agree_and_differ_from_the_base(tiny_config: Path, format: str, storage: str) -> None:
    config = shapes.model_config(tiny_config)
    names = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")
    formats = {f"layers.{i}.{name}": format for i in range(2) for name in names} | {"embed": format, "lm_head": format}
    linear = linears.linears(ModelShape("tiny", config, formats), builtin_format)[2]
    adapted = lora_linears.Adapted(lora_linears.parts_of(config, linear), 4, 2, storage)
    assert [part.first_panel for part in adapted.parts] == [0, 1]  # gate and up
    product = {"weight": format, "act": linear.quant.activation, "n": 256, "k": 64}
    choices = {op: programs.Choices(load_config(), op, []) for op in ("linear", "shrink", "epilogue")}
    kernels = {
        "linear": choices["linear"].of(3, workers=1, **product, epilogues=["lora"])[0],
        "shrink": choices["shrink"].of(3, workers=1, weight=adapted.a_format, act=adapted.act, n=16, k=64)[0],
        "epilogue": choices["epilogue"].of(3, workers=1, n=256, k=256, epilogues=["lora"])[0],
    }
    for each in choices.values():
        each.close()
    found, like = {}, None
    for way, ops in {"base": ["linear"], "fused": ["linear", "shrink"], "unfused": list(kernels)}.items():
        chosen = lora_linears.Kernels(**{op: kernels[op] for op in ops})
        reference = choices["linear"].reference
        made = lora_linears.subject(linear, adapted, chosen, 2, 3, _native.Pool(1), reference, like)
        assert made.once() > 0
        found[way], like = dict(made.op.run(0))["out"], made.op
    assert found["fused"].tobytes() == found["unfused"].tobytes()
    assert (found["fused"] != found["base"]).any(axis=1).all()
    assert np.isfinite(found["fused"]).all()


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["--linear", "down_prj"], 2, "did you mean `down_proj`"),
        (["--linear", "lm_head"], 2, "no such linear"),
        (["--storage", "int7"], 2, "did you mean `int8`"),
        (["--format", "int4-g46"], 1, "did you mean `int4-g64`"),
        (["--table", "folder"], 1, "cannot be written"),
        (["--table", "other.csv"], 2, "other columns"),
    ],
)
def test_an_error_names_the_invalid_option_and_a_remedy(
    attempt: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], status: int, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    small = ("--rounds", "1", "--rows", "1", "--ranks", "4", "--linear", "o_proj")
    ended, told = attempt("gemm-lora", *small, *arguments)
    assert (ended, said in told) == (status, True)
    assert (tmp_path / "other.csv").read_text() == "a,b\n1,2\n"
