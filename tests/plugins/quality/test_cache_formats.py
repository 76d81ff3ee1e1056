"""What each cache format costs the demo model, through the native kernels: docs/kv-cache.md has more tokens of it."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import pytest

pytest.importorskip("infeng_quality", reason="the quality wheel is not installed")
pytest.importorskip("infeng_demo", reason="the demo wheel is not installed")

from infeng_demo import model_dir
from infeng_quality import compare, models, texts

TEXT = Path(os.environ.get("INFENG_TEST_DATA", ".")) / "eval" / "gsm8k_test.jsonl"
DEMO = str(model_dir())
BOUNDS = {
    "f16": 1e-5,
    "int8": 1e-3,
    "int8i": 1e-3,
    "int8h": 1e-3,
    "int8hi": 1e-3,
    "fp8h": 5e-3,
    "k8v4h": 2e-2,
    "k8v4hi": 2e-2,
    "int4h": 5e-2,
    "int4hi": 5e-2,
}  # nats a token


@pytest.mark.slow
def test_each_cache_format_stays_within_the_loss_of_its_bits(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    compare.configure(parser)
    words = [DEMO, DEMO, "--texts", str(TEXT), "--tokens", "2000", "--context", "512", "--resamples", "200"]
    arguments = parser.parse_args(words)
    found = {}
    with models.open_reference(DEMO, 1) as reference:
        for name in BOUNDS:
            settings = {**models.EXACT, "kv_cache.dtype": name, "threads.count": 1}
            result = compare.measured(reference, DEMO, settings, [texts.read(TEXT)], arguments)
            found[name] = result["kl"]["mean"]
            with capsys.disabled():
                ratio, top1 = result["ppl_ratio"]["value"], result["top1"]
                print(f"\n{name:6} KL {found[name]:.6f}, perplexity {ratio:.4f}, top 1 {top1:.4f}", end="")
    for name, bound in BOUNDS.items():
        assert 0 < found[name] < bound, name
    assert found["int8h"] < found["k8v4h"] < found["int4h"]
