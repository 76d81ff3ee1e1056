"""`infeng bench pace` and `infeng bench prefix`: figures that belong together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import tiny_model
from infeng_bench.reports import results

from infeng_core.cli import main


@pytest.fixture
def measured(tmp_path: Path) -> Any:
    model, out = tiny_model.write(tmp_path / "model"), tmp_path / "out.json"

    def measure(*arguments: str) -> dict[str, Any]:
        assert main(["bench", *arguments, "--model", str(model), "-t", "1", "--json", str(out)]) == 0
        found: dict[str, Any] = json.loads(out.read_text())
        jsonschema.validate(found, results.schema())
        return found

    return measure


def test_a_prefill_is_measured_beside_decoding_sequences(measured: Any):
    found = measured("pace", "--rows", "2", "--prompt", "40", "--step-ms", "1", "--rounds", "2")
    assert (found["kind"], found["rows"], found["prompt"], found["step_ms"]) == ("pace", 2, 40, 1)
    assert 0 < found["median_itl_ms"] <= found["p99_itl_ms"]
    assert found["prefill_loss"] < 1 and found["total_loss"] < 1
    assert found["decode_tokens_per_s"] > 0


def test_a_prefix_is_measured_computed_in_memory_and_saved(measured: Any):
    found = measured("prefix", "--prompt", "48", "--rounds", "2")
    assert (found["kind"], found["prompt"], found["tail"]) == ("prefix", 48, 1)
    assert found["prefix_bytes"] > 0
    assert found["hit_ratio"] == pytest.approx(found["cold_ttft_ms"] / found["hit_ttft_ms"])
    assert min(found["saved_ttft_ms"], found["median_itl_ms"]) > 0


def test_activated_adapters_are_measured_on_what_the_base_has_read(measured: Any):
    found = measured("prefix", "--alora", "4", "--prompt", "96", "--tail", "3", "--rounds", "2")
    assert (found["kind"], found["rank"], found["targets"]) == ("alora", 4, "all")
    counts = [found[f"{link}_cached_tokens"] for link in ("cold", "alora", "base", "second_alora", "lora")]
    assert counts == [0, 96, 96, 96, 0]
    for link in ("alora", "second_alora"):
        beyond = found[f"{link}_ttft_ms"] - 2 * found["median_itl_ms"]
        assert found[f"{link}_excess_ms"] == pytest.approx(beyond)
    assert found["lora_ratio"] == pytest.approx(found["lora_ttft_ms"] / found["alora_ttft_ms"])
