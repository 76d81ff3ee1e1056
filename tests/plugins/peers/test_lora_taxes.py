"""`infeng bench lora-tax --engines`: which adapters and rows each engine gets, and what is made of its rates."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from infeng_bench.engine.work import Work
from infeng_bench.stats.contention import NOTHING
from infeng_peers import environment, known, serve, tax_comparison
from infeng_peers.tax_comparison import Pair, Sizes

from infeng_core.cli import main
from infeng_core.files import cache_root

PEER = """
NAME = "fake"
OPTIONS = {}


def open_model(model, threads, options):
    class Fake:
        vocab = 320
        mixes = False

        def introduction(self):
            return {"version": "7", "kernels": ["fast"], "bytes_per_token": 10_000, "details": {}}

        def drop_adapters(self):
            self.loaded = {}

        def load_adapter(self, name, path, scale):
            assert scale == 1.0
            self.loaded[name] = path
            return 500

        def open(self, kind, rows, positions):
            self.users = {}

        def admit(self, slot, prompt, adapter):
            assert adapter is None or self.loaded[adapter].endswith("adapter.txt")
            self.users[slot] = adapter

        def advance(self, slots):
            print("pass", {self.users[slot] for slot in slots}, slots)
            return [(slot, 0) for slot in slots]

        def stop(self):
            pass

    return Fake()
"""


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> known.Peer:
    """Put an installed peer called "fake", which cannot mix adapters, into the registry."""
    file = tmp_path / "fake.py"
    file.write_text(PEER)
    copy = "import shutil, sys; shutil.copy(sys.argv[1] + '/adapter_config.json', sys.argv[2] + '/adapter.txt')"
    peer = known.Peer(
        NAME="fake",
        ABOUT="for tests",
        REQUIREMENTS=("fake==7",),
        IMPORTS=(),
        FORMATS={"int4-g64": "q4"},
        OPTIONS={},
        TAKES_ADAPTERS=True,
        ADAPTER_FILE="adapter.txt",
        adapter_commands=lambda adapter, base, out: [[sys.executable, "-c", copy, str(adapter), str(out)]],
        path=file,
    )
    monkeypatch.setattr(known, "NAMES", (*known.NAMES, "fake"))
    original = known.peer
    monkeypatch.setattr(known, "peer", lambda name: peer if name == "fake" else original(name))
    place = environment.Environment(peer)
    place.tools.mkdir(parents=True, exist_ok=True)
    wrapper = place.tools / "python"
    wrapper.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    wrapper.chmod(0o755)
    record = {"requirements": ["fake==7"], "versions": {"fake": "7"}, "flags": {}, "python": "3"}
    (place.folder / environment.RECORD).write_text(json.dumps(record))
    return peer


def taxes(config: Path, *more: str) -> int:
    call = ["bench", "lora-tax", "--engines", "infeng,fake", "--synthetic", str(config), "--format", "int4-g64"]
    small = ["--rank", "4", "--pairs", "2", "--context", "24", "--steps", "2", "--adapters", "2", "--rows", "3"]
    return main([*call, "-t", "1", *small, *more])


def test_every_engine_is_measured_with_and_without_the_same_adapters(
    fake: Any, undisturbed: None, tiny_config: Path, tmp_path: Path, schema: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    assert taxes(tiny_config, "--json", str(out)) == 0
    result = json.loads(out.read_text())
    schema(result)
    ours, other = result["engines"]["infeng"], result["engines"]["fake"]
    assert result["pair_count"] == len(result["pairs"]) == 2
    taxes_of_pairs = sorted(pair["fake"]["without"] / pair["fake"]["with"] - 1 for pair in result["pairs"])
    assert other["lora_tax"] == pytest.approx(sum(taxes_of_pairs) / 2)
    assert (ours["passes"], other["passes"]) == (1, 2)
    assert other["adapter_bytes"] == 2 * 500
    assert other["bytes_share"] == pytest.approx(0.1)
    assert other["tax_goal"] == pytest.approx(0.12)
    assert 0 < ours["adapter_bytes"] < ours["weight_bytes"]
    shown = capsys.readouterr().out
    assert "decode:rows=3,context=24,steps=2; 2 LoRA adapters of rank 4 on all, 2 pairs" in shown
    assert "one pass over the weights for each adapter: fake" in shown
    passes = [
        line for line in (cache_root() / "bench" / "peers" / "fake.log").read_text().splitlines() if "pass" in line
    ]
    steps = 1 + 2  # the prompts, then the timed ones
    assert passes.count("pass {None} [0, 1, 2]") == 3 * steps  # a round that warms up, and two
    assert passes.count("pass {'a0'} [0, 2]") == passes.count("pass {'a1'} [1]") == 3 * steps


def test_the_page_has_a_row_for_each_engine(fake: Any, undisturbed: None, tiny_config: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    assert taxes(tiny_config, "-o", str(out)) == 0
    text = out.read_text()
    assert "<td>fake</td>" in text and "<td>infeng</td>" in text and "passes over the weights" in text
    assert "Time that 2 adapters add to a step, rank 4" in text


def test_sides_alternate_and_both_get_the_prompts_of_the_round() -> None:
    asked: list[tuple[str, int, tuple[str, ...]]] = []

    def engine(name: str) -> Any:
        def measure(work: Work, seed: int, uses: Any) -> dict[str, float]:
            asked.append((name, seed, tuple(uses)))
            return {"tokens_per_s": 4.0 if uses else 5.0}

        return SimpleNamespace(name=name, measure=measure, waits=NOTHING)

    work, names = Work.parse("decode:rows=2,context=9"), ("x", "y")
    found = tax_comparison.rounds([engine("a"), engine("b")], work, names, 1, 40)
    one, two = [("a", 40, ()), ("a", 40, names)], [("b", 40, ()), ("b", 40, names)]
    assert asked == [*one, *two, ("a", 41, names), ("a", 41, ()), ("b", 41, names), ("b", 41, ())]
    assert len(found) == 1, "the first round warms up"
    assert found[0]["b"].tax == pytest.approx(0.25)


def test_the_tax_is_the_median_of_pairs_with_the_bounds_of_the_sign_test() -> None:
    pairs = [Pair({"without": 10.0, "with": 10.0 / (1 + i / 100)}, {}) for i in range(1, 21)]
    figures = tax_comparison.taxed(pairs)
    assert figures["lora_tax"] == pytest.approx(0.105)
    assert (figures["lora_tax_low"], figures["lora_tax_high"]) == pytest.approx((0.06, 0.15))


@pytest.mark.parametrize(
    ("told", "sizes", "rows", "expected"),
    [
        ({"bytes_per_token": 100, "details": {}}, {"a": 3, "b": 5}, 4, Sizes(100, 8, 1)),
        ({"bytes_per_token": 100, "details": {"mixes": False}}, {"a": 3, "b": 5}, 4, Sizes(100, 8, 2)),
        ({"bytes_per_token": 100, "details": {"mixes": False}}, {"a": 3, "b": 5}, 1, Sizes(100, 3, 1)),
        ({"bytes_per_token": None}, {"a": 3}, 4, Sizes(None, None, 1)),
    ],
)
def test_a_step_reads_the_adapters_of_its_rows(told: Any, sizes: Any, rows: int, expected: Sizes) -> None:
    engine: Any = SimpleNamespace(introduction=told, adapter_bytes=sizes)
    assert Sizes.of(engine, rows, ["a", "b"]) == expected


def test_unknown_bytes_have_no_share() -> None:
    assert Sizes(None, 8, 2).to_dict() == {"adapter_bytes": 8, "passes": 2}
    assert Sizes(100, 8, 1).to_dict()["tax_goal"] == pytest.approx(0.1)


def test_a_step_of_an_engine_that_cannot_mix_has_a_pass_for_each_adapter() -> None:
    users = ["a", None, "b", "a", None]
    assert serve.passes_of(users, mixes=True) == [[0, 1, 2, 3, 4]]
    assert serve.passes_of(users, mixes=False) == [[0, 3], [1, 4], [2]]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--dora"], "--dora: is measured on this engine alone"),
        (["--base-only"], "--base-only: is measured on this engine alone"),
        (["--engines", "infeng,openvino"], "openvino: its rows cannot have different adapters here"),
        (["--engines", "infeng,llama_cpp"], "not installed: run infeng bench peers install llama_cpp"),
        (["--engines", "infeng,lama_cpp"], "did you mean `llama_cpp`"),
    ],
)
def test_a_wrong_call_is_an_error_before_anything_runs(
    fake: Any, tiny_config: Path, capsys: pytest.CaptureFixture[str], more: list[str], said: str
) -> None:
    assert taxes(tiny_config, *more) != 0
    assert said.lower() in capsys.readouterr().err.lower()
