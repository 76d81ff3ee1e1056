"""`infeng bench adapters`: a folder of many adapters, few of them in memory."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
import tiny_model
from infeng_bench.engine.closed_loop import Answered
from infeng_bench.models import packed_adapters
from infeng_bench.reports import results
from infeng_bench.verbs import adapters

from infeng_core import Engine
from infeng_core.api import cache_root
from infeng_core.api.adapters import ARTIFACT_FILE
from infeng_core.cli import main


@pytest.mark.slow
def test_both_sides_answer_the_same_requests(tmp_path: Path):
    model = tiny_model.write(tmp_path / "model")
    out = tmp_path / "adapters.json"
    options = ["--count", "300", "--resident", "4", "--requests", "60", "--pairs", "3", "--starts", "1", "-t", "1"]
    options += ["--prompt", "8", "--new-tokens", "2", "--concurrency", "2"]
    assert main(["bench", "adapters", str(model), *options, "--json", str(out)]) == 0
    found = json.loads(out.read_text())
    jsonschema.validate(found, results.schema())
    assert (found["kind"], found["count"], found["resident"], found["requests"]) == ("adapters", 300, 4, 60)
    assert 0.2 < found["cold_share"] < 1 and found["cold_share_all"] == 0
    assert found["load"]["median_load_ms"] > 0 and len(found["round_ratios"]) == 3
    assert found["median_ratio"] > 0 and found["p99_ratio"] > 0
    assert 0 < found["bytes_per_name"] < 1024
    made = list((cache_root() / "bench" / "directories").glob("*-300"))
    assert any(len(list(folder.iterdir())) == 300 for folder in made)
    written = sum(1 for folder in made for _ in folder.glob(f"*/{ARTIFACT_FILE}"))
    assert found["drawn"] <= written < 300, "the files of those alone that a request names"


def test_the_adapters_differ_and_are_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    model = tiny_model.write(tmp_path / "model")
    with Engine(model, threads=1) as engine:
        folder, nbytes = packed_adapters.folder_of(engine, model, 5, [0, 3], rank=2, targets="qv")
        files = sorted(folder.glob(f"*/{ARTIFACT_FILE}"))
        assert [path.parent.name for path in files] == ["a000000", "a000003"]
        assert all(path.stat().st_size > nbytes for path in files)
        assert files[0].read_bytes() != files[1].read_bytes()
        monkeypatch.setattr(packed_adapters, "_write", lambda *_: pytest.fail("it was made again"))
        assert packed_adapters.folder_of(engine, model, 5, [3], rank=2, targets="qv")[0] == folder


def test_ratios_compare_medians_and_tails_with_bounds():
    few = [[Answered(0.2, 0.1), Answered(0.1, None)] for _ in range(6)]
    every = [[Answered(0.1, None), Answered(0.1, None)] for _ in range(6)]
    found = adapters._compared(few, every)
    assert found["median_ratio"] == found["median_ratio_high"] == pytest.approx(1.5)
    assert found["p99_ratio"] == pytest.approx(2.0, rel=0.01)
    assert (found["cold_share"], found["cold_share_all"]) == (0.5, 0)
    assert found["load"]["median_load_ms"] == pytest.approx(100)
    assert found["ratio_confidence"] > 0.9
