"""Published models, of random weights, load, decode and take the memory that was said before they were made."""

import json
import os
from pathlib import Path

import pytest
from infeng_bench.models import shapes

from infeng_core.cli import main

SMALLEST = ("smollm2-135m", "qwen2.5-0.5b")
"""Those that the slow suite makes; the others are nightly."""

APART = 0.05
"""Of what was said."""

SHARED = 16e6
"""Bytes of libraries, of which other Python processes take their part while they run (Pss)."""

CONFIGS = sorted((Path(os.environ.get("INFENG_TEST_DATA", "")) / "configs").glob("*.json"))
NAMES = [*SMALLEST, *(name for name in (*shapes.SHAPES, *shapes.published()) if name not in SMALLEST)]


def mark(name: str) -> pytest.MarkDecorator:
    return pytest.mark.slow if name in SMALLEST else pytest.mark.nightly


@pytest.mark.parametrize(
    "model",
    [
        *(pytest.param(name, marks=mark(name)) for name in NAMES),
        *(pytest.param(str(file), marks=pytest.mark.nightly, id=file.name) for file in CONFIGS),
    ],
)
def test_a_model_takes_the_predicted_memory(model: str, tmp_path: Path) -> None:
    out = tmp_path / "memory.json"
    assert main(["bench", "memory", "--synthetic", model, "--most", "12GB", "--json", str(out)]) == 0
    result = json.loads(out.read_text())
    for left in result["left_out"]:
        pytest.skip(left["why"])
    [line] = result["measurements"]
    assert line["tokens"] == 4
    assert line["made_bytes"] == line["weight_bytes"]
    assert line["measured_bytes"] <= (1 + APART) * line["memory_bytes"]
    assert line["measured_bytes"] >= (1 - APART) * line["memory_bytes"] - SHARED
    assert line["convert_ratio"] == pytest.approx(1, abs=APART), "converting"
    assert line["anonymous_bytes"] > line["weight_bytes"] + line["kv_bytes"], "weights are copied, the cache is full"
