"""The profiles of ``infeng convert --quality`` keep what they promise, on the demo model and a part of GSM8K."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("infeng_quality", reason="the quality wheel is not installed")
pytest.importorskip("infeng_demo", reason="the demo wheel is not installed")

from infeng_demo import model_dir
from infeng_quality import compare, models, texts

from infeng_core.api import Engine
from infeng_core.cli import main

GOALS = {  # perplexity against f32 and KL at most, the share of equal likeliest tokens at least
    "small": (1.006, 0.018, 0.942),
    "balanced": (1.005, 0.009, 0.955),
    "faithful": (1.003, 0.003, 0.975),
    "int8": (1.002, 0.001, 0.98),
}
TOKENS = 8_000


@pytest.fixture(scope="module")
def data() -> Path:
    found = Path(os.environ.get("INFENG_TEST_DATA", "/nowhere"))
    if not (found / "eval" / "gsm8k_test.jsonl").is_file():
        pytest.skip("INFENG_TEST_DATA has no eval/gsm8k_test.jsonl")
    return found


@pytest.fixture(scope="module")
def reference() -> Iterator[Engine]:
    with models.open_reference(str(model_dir()), 2) as engine:
        yield engine


def measured(reference: Engine, candidate: Path, data: Path) -> dict[str, Any]:
    parser = argparse.ArgumentParser()
    compare.configure(parser)
    source = data / "eval" / "gsm8k_test.jsonl"
    words = [str(model_dir()), str(candidate), "--tokens", str(TOKENS), "--texts", str(source)]
    arguments = parser.parse_args(words)
    return compare.measured(reference, str(candidate), {"kv_cache.dtype": "f32"}, [texts.read(source)], arguments)


@pytest.mark.slow
@pytest.mark.parametrize(
    "profile", ["small", *(pytest.param(name, marks=pytest.mark.nightly) for name in GOALS if name != "small")]
)
def test_a_profile_meets_its_documented_loss(profile: str, reference: Engine, data: Path, tmp_path: Path) -> None:
    made = tmp_path / profile
    text = data / "train" / "gsm8k_train.jsonl"
    calibrate = "none" if profile == "int8" else str(text)
    assert main(["convert", str(model_dir()), str(made), "--quality", profile, "--calibrate", calibrate]) == 0
    result = measured(reference, made, data)
    ratio, kl, top = GOALS[profile]
    # Values, not bounds: the sample is small. Intervals of a larger one are in docs/quantization.md.
    assert result["ppl_ratio"]["value"] < ratio
    assert result["kl"]["mean"] < kl
    assert result["top1"] > top
