"""`infeng bench swap`: figures that belong together."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
import tiny_model
from infeng_bench.reports import results

from infeng_core.cli import main


@pytest.mark.parametrize("source", ["artifact", "peft"])
def test_swaps_are_measured_beside_a_batch(tmp_path: Path, source: str):
    model = tiny_model.write(tmp_path / "model", tiny_model.Shape(max_positions=8192))  # rows that outlast a load
    out = tmp_path / "swap.json"
    options = ["--rows", "2", "--context", "16", "--rank", "4", "--rounds", "5", "-t", "1", "--source", source]
    assert main(["bench", "swap", "--model", str(model), *options, "--json", str(out)]) == 0
    found = json.loads(out.read_text())
    jsonschema.validate(found, results.schema())
    assert (found["kind"], found["swaps"], found["source"], found["rank"]) == ("swap", 5, source, 4)
    assert 0 < found["adapter_swap"]["min"] <= found["adapter_swap_ms"] <= found["adapter_swap"]["max"]
    assert found["adapter_wait_ms"] >= found["adapter_swap"]["min"]
    assert 0 < found["swap_itl_ratio"] <= found["swap_itl_ratio_p90"] <= found["swap_itl_ratio_max"]
    assert found["adapter_bytes"] > 0


def test_swaps_that_outlast_every_batch_have_no_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    model = tiny_model.write(tmp_path / "model", tiny_model.Shape(max_positions=32))  # 4 new tokens a row
    options = ["--rows", "2", "--context", "28", "--rank", "4", "--rounds", "2", "-t", "1"]
    assert main(["bench", "swap", "--model", str(model), *options]) == 1
    assert "swap: its rows ended before a load had" in capsys.readouterr().err
