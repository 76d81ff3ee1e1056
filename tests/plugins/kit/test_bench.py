"""`infeng plugins bench`: what is measured, beside what, and what the figures say."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from e2e.harness import VECTOR
from infeng_kit import bench
from infeng_kit.benches.pairs import FEWEST, Pair, measured
from infeng_kit.benches.parts import of_format
from kit_parts import infeng

from infeng_core import cli
from infeng_core.plug.manager import Plugins

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"


def measurements(*words: object, cwd: Path, example: str = "") -> dict[str, Any]:
    """Return a result of the verb."""
    more = {"INFENG_PLUGINS_PATHS": str(next((EXAMPLES / example).glob("infeng_*/plugin.yaml")))} if example else {}
    done = infeng("plugins", "bench", *words, "--pairs", 3, "-t", 1, "--json", "-", cwd=cwd, **more)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    for line in found["measurements"]:
        assert 0 < line["ratio_low"] <= line["ratio"] <= line["ratio_high"]
        assert line["figure"] > 0 and line["figure_beside"] > 0 and line["pairs"] == 3
    return found


def test_a_policy_is_measured_beside_the_engines_own(tmp_path: Path) -> None:
    found = measurements("shortest", cwd=tmp_path, example="scheduler")
    [line] = found["measurements"]
    assert (line["part"], line["beside"], line["unit"]) == ("policy shortest", "fcfs", "us")
    assert (found["kind"], found["plugin"], found["plugin_version"]) == ("plugin", "shortest", "0.1.0")


def test_a_tokenizer_is_measured_by_the_bytes_of_texts(tmp_path: Path) -> None:
    lines = measurements("bytes", cwd=tmp_path, example="tokenizer")["measurements"]
    assert [line["work"] for line in lines] == ["encode", "decode, token by token"]
    assert {(line["part"], line["beside"], line["unit"]) for line in lines} == {("tokenizer bytes", "hf", "MB/s")}


def test_the_engines_own_tokenizer_is_measured_beside_itself(tmp_path: Path) -> None:
    lines = measurements("tokenizers", cwd=tmp_path)["measurements"]
    assert {(line["part"], line["beside"]) for line in lines} == {("tokenizer hf", "hf")}


def test_a_format_is_packed_and_unpacked_beside_int8() -> None:
    pairs = list(of_format(Plugins.discover(), "int4-g64"))
    assert [(pair.work, pair.beside) for pair in pairs] == [("pack", "int8-row"), ("unpack", "int8-row")]
    assert all(pair.own.once() > 0 and pair.other.once() > 0 for pair in pairs)


@pytest.mark.skipif(VECTOR == "reference", reason="this processor has none of the vector libraries")
def test_a_kernel_is_measured_beside_the_one_that_would_take_its_place(tmp_path: Path) -> None:
    found = measurements(VECTOR, "--kernel", "rmsnorm", "--rows", "1,9", cwd=tmp_path)
    lines = [line for line in found["measurements"] if line["part"] == "kernel rmsnorm"] or found["measurements"]
    assert {line["rows"] for line in lines} == {1, 9}
    for line in lines:
        assert line["work"].startswith("rmsnorm") and f"rows {line['rows']}" in line["work"]
        assert not line["beside"].startswith(f"{VECTOR}/")


def test_a_plugin_without_a_part_to_measure_is_named(tmp_path: Path) -> None:
    path = str(next((EXAMPLES / "drafter").glob("infeng_*/plugin.yaml")))
    done = infeng("plugins", "bench", "again", cwd=tmp_path, INFENG_PLUGINS_PATHS=path)
    assert done.returncode == 2
    assert "plugin again: nothing of it can be measured: it has no kernel" in done.stderr
    unknown = infeng("plugins", "bench", "nobody", cwd=tmp_path)
    assert unknown.returncode == 1 and "nobody" in unknown.stderr


def test_without_the_wheel_that_measures_it_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "find_spec", lambda name: None)
    assert cli.main(["plugins", "bench", "kit"]) == 2
    assert "needs the wheel infeng-bench: pip install infeng-bench" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--rows", "0"], ["--rows", "1,,2"], ["--pairs", "-1"], ["-t", "99999999"]])
def test_numbers_that_are_none_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        cli.main(["plugins", "bench", "kit", *words])
    assert "is not a whole number from 1 to 65536" in capsys.readouterr().err


@dataclass
class Paced:
    """Something that always takes the same time."""

    seconds: float
    name: str = ""
    calls: int = 4
    runs: int = 0

    def once(self) -> float:
        self.runs += 1
        return self.seconds


def test_the_ratio_says_how_many_times_as_fast_the_plugin_is() -> None:
    own, other = Paced(0.001), Paced(0.002)
    found = measured(Pair("part", "work", "other", own, other), 7)
    assert (found["ratio"], found["ratio_low"], found["ratio_high"], found["pairs"]) == (2.0, 2.0, 2.0, 7)
    assert (found["figure"], found["figure_beside"]) == pytest.approx((250.0, 500.0))  # us a call
    assert measured(Pair("part", "work", "other", own, other, 0.5, "MB/s"), 7)["figure"] == pytest.approx(2000.0)


def test_slow_work_is_read_a_few_times_only() -> None:
    own, other = Paced(100.0), Paced(1.0)
    assert measured(Pair("part", "work", "other", own, other), 50)["pairs"] == FEWEST
    assert own.runs == FEWEST + 2  # two to warm up
