"""`infeng bench compare` from end to end: our engine and a peer in a process and an environment of its own."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from infeng_bench.engine.work import Work
from infeng_bench.kernels.roofline import Roofline
from infeng_bench.reports import results
from infeng_bench.stats.contention import Waits
from infeng_peers import comparison, environment, known
from infeng_peers.comparison import Round
from infeng_peers.process import EngineProcess
from infeng_peers.verbs.compare import several

from infeng_core.api import EngineConfig, UsageError
from infeng_core.cli import main
from infeng_core.files import cache_root

PEER = """
NAME = "fake"
OPTIONS = {"pace": "1"}


def open_model(model, threads, options):
    class Fake:
        vocab = 320

        def introduction(self):
            details = {"kv_bytes_per_position": 100, "model": model, "threads": threads}
            return {"version": "7", "kernels": ["fast"], "bytes_per_token": 1000, "details": details}

        def open(self, kind, rows, positions):
            self.rows, self.given = rows, []
            self.late = options["pace"] == "late"
            if options["pace"] == "broken":
                raise MemoryError("no room for the cache")

        def admit(self, slot, prompt, adapter):
            print("a line that is none of the protocol")
            self.given.append(slot)

        def advance(self, slots):
            assert slots == self.given == list(range(self.rows))
            return [(slot, 0) for slot in slots][: self.rows - self.late]

        def stop(self):
            pass

    return Fake()
"""


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> known.Peer:
    """Put an installed peer called "fake" into the registry."""
    file = tmp_path / "fake.py"
    file.write_text(PEER)
    peer = known.Peer(
        NAME="fake",
        ABOUT="for tests",
        REQUIREMENTS=("fake==7",),
        IMPORTS=(),
        FORMATS={"int4-g64": "q4", "int4-p32": "q4"},
        OPTIONS={"pace": "1"},
        CHOICES={"pace": ("1", "late", "broken")},
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


@pytest.fixture
def roofline(tmp_path: Path) -> Path:
    """Return a result of `infeng bench roofline`, so that no test measures the machine."""
    ceilings = Roofline(1, 1e10, 1e10, {"avx2": 1e11, "avx512_vnni": 1e12, "amx_int8": 4e12}, 3e9, {})
    path = tmp_path / "roofline.json"
    results.write(path, results.record("roofline", ceilings.to_dict(), threads=1))
    return path


def compare(tiny_config: Path, roofline: Path, *more: str) -> int:
    call = ["bench", "compare", "--engines", "infeng,fake", "--synthetic", str(tiny_config), "--format", "int4-g64"]
    return main([*call, "--threads", "1", "--roofline", str(roofline), *more])


def test_the_result_of_one_work_has_the_documented_keys(
    fake: Any, tiny_config: Path, roofline: Path, tmp_path: Path, schema: Any
) -> None:
    out = tmp_path / "out.json"
    work = "decode:rows=2,context=32,steps=4"
    assert compare(tiny_config, roofline, "--work", work, "--pairs", "5", "--json", str(out)) == 0
    result = json.loads(out.read_text())
    schema(result)
    assert result["work"] == work
    assert len(result["pairs"]) == 5
    for name in ("infeng", "fake"):
        rate = result["engines"][name]["tokens_per_s"]
        assert 0 < rate["min"] <= rate["median"] <= rate["max"]
    ratios = sorted(pair["infeng"] / pair["fake"] for pair in result["pairs"])
    assert result["ratios"] == {"fake": pytest.approx(ratios[2])}
    assert result["ratio_low"] == {"fake": pytest.approx(ratios[0])}
    assert result["ratio_low_confidence"]["fake"] == pytest.approx(1 - 1 / 32)
    assert result["roofline"]["dram_fraction"] > 0
    assert result["roofline"]["int8_fraction"] is None or result["roofline"]["int8_fraction"] > 0
    assert result["engines"]["fake"]["bytes_per_token"] == 1000 / 2 + 100 * (32 + 2.5)
    assert result["kernels"]["fake"] == ["fast"]
    assert {line["op"] for line in result["kernels"]["infeng"]} >= {"linear", "attention"}
    assert result["engine_details"]["fake"]["threads"] == 1
    assert "machine" in result and "features" in result and result["seconds_in_all"] > 0


def test_several_works_are_a_list_and_a_table(
    fake: Any,
    undisturbed: None,
    tiny_config: Path,
    roofline: Path,
    tmp_path: Path,
    schema: Any,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out, table = tmp_path / "out.json", tmp_path / "out.csv"
    works = ["--work", "decode:rows=1,context=16,steps=2", "--work", "prefill:rows=2,context=16"]
    assert compare(tiny_config, roofline, *works, "--pairs", "1", "--json", str(out), "--csv", str(table)) == 0
    result = json.loads(out.read_text())
    schema(result)
    assert [one["work"] for one in result["measurements"]] == works[1::2]
    assert "prefill_seconds" not in result["measurements"][1]["engines"]["fake"]
    assert len(table.read_text().splitlines()) == 3
    shown = capsys.readouterr().out
    assert "1 pairs" in shown and "total time" in shown and "infeng is " in shown


def test_a_peer_that_fails_ends_the_comparison_with_its_name_and_log(
    fake: Any, tiny_config: Path, roofline: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare(tiny_config, roofline, "--work", "prefill:context=8", "--option", "fake.pace=broken") == 1
    told = capsys.readouterr().err
    assert "fake: prefill:rows=1,context=8: MemoryError: no room for the cache" in told
    log = cache_root() / "bench" / "peers" / "fake.log"
    assert str(log) in told
    assert "Traceback" in log.read_text()


def test_a_peer_with_a_row_that_misses_a_step_has_no_figure(
    fake: Any, tiny_config: Path, roofline: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    work = ["--work", "decode:rows=4,context=8,steps=5"]
    assert compare(tiny_config, roofline, *work, "--option", "fake.pace=late") == 1
    assert "15 tokens of 5 steps of 4 rows: not every row decoded in each" in capsys.readouterr().err


@pytest.mark.slow
def test_our_side_counts_rows_by_steps_under_the_default_of_step_ms(
    fake: Any, tiny_config: Path, roofline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert EngineConfig().scheduler.step_ms > 0  # or this would prove nothing
    counted: list[tuple[str, int]] = []
    measure = EngineProcess.measure

    def kept(self: EngineProcess, work: Work, seed: int) -> dict[str, Any]:
        answer = measure(self, work, seed)
        counted.append((self.name, answer["tokens"]))
        return answer

    monkeypatch.setattr(EngineProcess, "measure", kept)
    work = ["--work", "decode:rows=16,context=80,steps=4", "--pairs", "1", "--set", "scheduler.step_ms=1"]
    out = tmp_path / "out.json"
    assert compare(tiny_config, roofline, *work, "--json", str(out)) == 0
    assert json.loads(out.read_text())["settings"] == ["scheduler.step_ms=1"]
    assert counted == [("infeng", 64), ("fake", 64)] * 2


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (["--engines", "infeng,lama_cpp"], "did you mean `llama_cpp`"),
        (["--engines", "infeng"], "does not name two different engines"),
        (["--engines", "infeng,llama_cpp"], "not installed: run infeng bench peers install llama_cpp"),
        (["--work", "decod"], "did you mean `decode`"),
        (["--format", "int8-row"], "nothing that stands against int8-row"),
        (["--option", "fake"], "is not PEER.KEY=VALUE"),
        (["--option", "fake.space=1"], "did you mean `pace`"),
        (["--option", "fake.pace=slow"], "'slow' is no pace: give 1, late, broken"),
        (["--set", "scheduler.step_mss=1"], "did you mean `step_ms`"),
    ],
)
def test_a_wrong_call_is_an_error_before_anything_runs(
    fake: Any, tiny_config: Path, roofline: Path, capsys: pytest.CaptureFixture[str], more: list[str], text: str
) -> None:
    assert compare(tiny_config, roofline, "--work", "decode", *more) != 0
    assert text.lower() in capsys.readouterr().err.lower()


def test_limits_follow_from_the_costs_that_the_engine_reports() -> None:
    ceilings = Roofline(2, 100.0, 50.0, {"avx2": 1000.0, "avx512_vnni": 4000.0, "amx_int8": 20000.0}, 1.0, {})
    told = {
        "engine": "infeng",
        "bytes_per_token": 40,
        "kernels": [
            {"op": "linear", "what": "qkv int4-g64 8x8", "rows": [1, 4], "kernel": "a/small"},
            {"op": "linear", "what": "qkv int4-g64 8x8", "rows": [5, 512], "kernel": "a/large"},
        ],
        "details": {
            "block_macs": 90,
            "head_macs": 10,
            "attention_macs_per_position": 2,
            "kv_bytes_per_position": 1,
            "max_rows": 512,
            "kernel_features": {"a/small": ["avx512_vnni", "avx512bw"], "a/large": ["amx_int8"]},
        },
    }
    found = [Round({"infeng": 1.0, "peer": 0.5}, {"infeng": 1.0, "peer": 1.0}, {})] * 5
    work = Work.parse("decode:rows=1,context=10,steps=19")
    result = comparison.compared(work, found, {"infeng": told, "peer": {}}, ceilings)
    assert result["roofline"]["dram_fraction"] == pytest.approx(
        (40 + 20) / 100
    )  # one step a second; context 10 + 20 / 2
    assert result["roofline"]["int8_fraction"] == pytest.approx((100 + 20 * 2) / 4000)
    assert result["roofline"]["int8_isa"] == "avx512_vnni"
    assert result["roofline"]["int8_fractions"]["amx_int8"] == pytest.approx(140 / 20000)
    prompts = comparison.compared(Work.parse("prefill:context=1024"), found, {"infeng": told, "peer": {}}, ceilings)
    assert prompts["roofline"]["int8_isa"] == "amx_int8"
    macs = 1024 * 90 + 10 + 1024 * 1025 // 2 * 2
    assert prompts["roofline"]["int8_fraction"] == pytest.approx(macs / 1024 / 20000)
    assert prompts["roofline"]["dram_fraction"] == pytest.approx(2 * 40 / 1024 / 100)
    assert result["ratios"] == {"peer": 2.0}


def test_a_starved_pair_is_kept_and_named() -> None:
    rates = [10.0, 10.0, 10.0, 1.0, 10.0]
    found = [Round({"infeng": 20.0, "peer": rate}, {"infeng": 1.0, "peer": 1.0}, {}) for rate in rates]
    result = comparison.compared(Work.parse("prefill"), found, {"infeng": {}, "peer": {}}, None)
    assert result["starved"] == [3]
    assert result["pair_count"] == len(result["pairs"]) == 5
    assert result["ratio_spread"]["peer"] == {"median": 2.0, "min": 2.0, "max": 20.0}
    assert result["roofline"] == {"dram_fraction": None, "int8_fraction": None}


def test_every_round_has_its_own_prompts_and_the_warm_up_is_dropped() -> None:
    asked: list[tuple[str, str, int]] = []

    def engine(name: str) -> Any:
        def measure(work: Work, seed: int) -> dict[str, float]:
            asked.append((name, str(work), seed))
            return {"tokens_per_s": seed + 1.0, "prefill_seconds": 0.0}

        return SimpleNamespace(name=name, measure=measure, waits=Waits(stolen=0.25))

    found = comparison.rounds([engine("a"), engine("b")], Work.parse("prefill:rows=2,context=9"), 2, 40)
    work = "prefill:rows=2,context=9"
    assert asked == [(name, work, seed) for seed in (40, 41, 42) for name in ("a", "b")]  # A B A B A B
    assert [one.rates["a"] for one in found] == [42, 43]
    assert [one.waits["b"].stolen for one in found] == [0.25, 0.25]


@pytest.mark.parametrize("seconds", ["nan", "-1", "0", "inf", "x"])
def test_an_invalid_time_is_refused(
    fake: Any, tiny_config: Path, roofline: Path, capsys: pytest.CaptureFixture[str], seconds: str
) -> None:
    with pytest.raises(SystemExit):
        compare(tiny_config, roofline, "--work", "decode", "--timeout", seconds)
    assert "is not a number of seconds above 0" in capsys.readouterr().err


@pytest.mark.slow
def test_decode_and_prefill_measure_other_engines_too(
    fake: Any, tiny_config: Path, roofline: Path, tmp_path: Path, schema: Any
) -> None:
    out = tmp_path / "out.json"
    call = ["--engines", "infeng,fake", "--rows", "1,2", "--context", "16", "--pairs", "1", "-t", "1"]
    call += ["--roofline", str(roofline), "--json", str(out)]
    for verb, steps, tail in (("decode", ["--steps", "2"], ",steps=2"), ("prefill", [], "")):
        assert main(["bench", verb, str(tiny_config), *call, *steps]) == 0
        result = json.loads(out.read_text())
        schema(result)
        assert [one["work"] for one in result["measurements"]] == [
            f"{verb}:rows={rows},context=16{tail}" for rows in (1, 2)
        ]
        assert all(set(one["ratios"]) == {"fake"} for one in result["measurements"])


@pytest.mark.slow
@pytest.mark.parametrize("call", [["decode", "--steps", "2"], ["compare", "--engines", "infeng", "--work", "decode"]])
def test_formats_of_one_model_are_measured_in_turn(
    call: list[str], tiny_config: Path, roofline: Path, tmp_path: Path, schema: Any
) -> None:
    out = tmp_path / "out.json"
    sizes = ["--context", "16"] if call[0] == "decode" else []
    more = ["--format", "int4-g64,int8-row", "--pairs", "1", "-t", "1", "--roofline", str(roofline)]
    assert main(["bench", *call, *sizes, "--synthetic", str(tiny_config), *more, "--json", str(out)]) == 0
    result = json.loads(out.read_text())
    schema(result)
    assert (result["kind"], result["format"], result["base"]) == ("compare", "int4-g64,int8-row", "int4-g64")
    assert set(result["engines"]) == {"int4-g64", "int8-row"}
    assert set(result["ratios"]) == {"int8-row"}
    assert result["engines"]["int4-g64"]["weight_bytes"] < result["engines"]["int8-row"]["weight_bytes"]


def test_a_format_is_named_once(tiny_config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "decode", str(tiny_config), "--format", "int8-row,int8-row", "--roofline", "none"]) == 2
    assert "names one twice" in capsys.readouterr().err


def test_ranges_are_works_whose_numbers_double() -> None:
    found = [str(work) for work in several("decode:rows=1..64,context=512")]
    assert found == [f"decode:rows={rows},context=512" for rows in (1, 2, 4, 8, 16, 32, 64)]
    assert [work.context for work in several("prefill:context=1024..20000")] == [1024, 2048, 4096, 8192, 16384]
    assert len(several("decode:rows=1..4,context=16..32")) == 6
    assert several("decode:rows=3") == [Work("decode", 3)]
    with pytest.raises(UsageError, match=r"8\.\.4 is no range"):
        several("decode:rows=8..4")
