"""Figures of single tokens, and how texts become windows, gates and charts."""

from __future__ import annotations

import argparse
import gzip
import json
import math
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("infeng_quality", reason="the quality wheel is not installed")

from infeng_quality import charts, gates, measures, results, texts
from infeng_quality.charts import Point
from infeng_quality.greedy import first_difference
from infeng_quality.scoring import histogram

from infeng_core.api import UsageError


def random_logits(rows: int, vocab: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 3, (rows, vocab)).astype(np.float32)


def test_equal_logits_have_a_divergence_of_exactly_zero() -> None:
    logits = random_logits(20, 300, 1)
    found = measures.measure(logits, logits.copy(), np.arange(20, dtype=np.int32))
    assert (found.kl == 0.0).all()
    assert (found.nll == found.other).all()
    assert found.same.all()


def test_the_figures_are_those_of_the_formulas() -> None:
    p, q = random_logits(9, 50, 2), random_logits(9, 50, 3)
    targets = np.arange(9, dtype=np.int32)
    found = measures.measure(p, q, targets)
    for row in range(9):
        a = [math.exp(x) for x in p[row].tolist()]
        b = [math.exp(x) for x in q[row].tolist()]
        a, b = [x / math.fsum(a) for x in a], [x / math.fsum(b) for x in b]
        assert found.kl[row] == pytest.approx(math.fsum(x * math.log(x / y) for x, y in zip(a, b, strict=True)))
        assert found.nll[row] == pytest.approx(-math.log(a[row]))
        assert found.other[row] == pytest.approx(-math.log(b[row]))
        assert found.same[row] == (a.index(max(a)) == b.index(max(b)))


def test_figures_do_not_depend_on_how_rows_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    p, q, targets = random_logits(17, 40, 4), random_logits(17, 40, 5), np.zeros(17, np.int32)
    whole = measures.measure(p, q, targets)
    monkeypatch.setattr(measures, "CELLS", 100)
    assert all((a == b).all() for a, b in zip(whole, measures.measure(p, q, targets), strict=True))


def test_the_divergence_of_one_shifted_logit_is_the_binary_one() -> None:
    p, q = np.zeros((1, 2), np.float32), np.array([[1.0, 0.0]], np.float32)
    share = 1 / (1 + math.exp(-1))
    expected = 0.5 * math.log(0.5 / share) + 0.5 * math.log(0.5 / (1 - share))
    assert measures.measure(p, q, np.zeros(1, np.int32)).kl[0] == pytest.approx(expected)


def test_logits_that_are_not_finite_give_no_figures() -> None:
    p, q = random_logits(2, 8, 6), random_logits(2, 8, 7)
    q[1, 3] = np.nan
    found = measures.measure(p, q, np.zeros(2, np.int32))
    assert np.isfinite(found.kl).tolist() == [True, False]


def test_documents_come_from_lines_articles_and_separators(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"question": "2+2?", "answer": "4"}\n\n"plain"\n{"text": "t", "code": "c"}\n')
    assert texts.read(tmp_path / "a.jsonl").documents == ("Question: 2+2?\nAnswer: 4", "plain", "t\nc")
    with gzip.open(tmp_path / "b.jsonl.gz", "wt") as file:
        file.write('{"prompt": "def f():", "canonical_solution": " pass"}\n')
    assert texts.read(tmp_path / "b.jsonl.gz").documents == ("def f(): pass",)
    assert texts.split("one<|endoftext|>two") == ["one", "two"]
    assert texts.split(" = A = \n x\n = = B = = \n y\n = C = \n z\n")[1:] == [
        " = A = \n x\n = = B = = \n y\n",
        " = C = \n z\n",
    ]
    assert texts.split("a story\n\nin parts") == ["a story\n\nin parts"]


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.txt", b"", "it has no text"),
        ("a.txt", b" \n\n ", "it has no text"),
        ("a.txt", b"\xff\xfe", "not UTF-8 text"),
        ("a.jsonl", b"{", "a.jsonl:1: not JSON"),
        ("a.jsonl", b'"x"\n{"foo": 1}', "a.jsonl:2: neither a text nor an object with one"),
        ("a.jsonl", b'{"text": 7}', "neither a text"),
        ("a.jsonl", b'"\\ud83d\\ude00"\n"\\ud83d"', "a.jsonl:2: not JSON"),
        ("a.jsonl", b"[" * 100_000, "not JSON"),
        ("a.jsonl.gz", b"no gzip", "cannot be read"),
    ],
)
def test_a_hostile_text_is_one_clear_error(tmp_path: Path, name: str, content: bytes, says: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError, match=says):
        texts.read(tmp_path / name)
    with pytest.raises(UsageError, match="no such file"):
        texts.read(tmp_path)


def test_a_truncated_compressed_file_is_refused(tmp_path: Path) -> None:
    packed = tmp_path / "a.jsonl.gz"
    packed.write_bytes(gzip.compress(b'"one"\n') + gzip.compress(b'"two"\n'))  # as of cat a.gz b.gz
    assert texts.read(packed).documents == ("one", "two")
    packed.write_bytes(gzip.compress(b'"one"\n"two"\n' * 100)[:-12])
    with pytest.raises(UsageError, match="cannot be read"):
        texts.read(packed)


def test_decompression_stops_at_the_size_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "MOST_BYTES", 1000)
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b" " * 100_000))
    with pytest.raises(UsageError, match="more than 1000 bytes"):
        texts.read(tmp_path / "a.jsonl.gz")


def test_windows_hold_every_token_once_after_a_bos_token() -> None:
    found = texts.windows([1, *range(10, 20)], 1, 4, 0, 7)
    assert [window.ids for window in found] == [(1, 10, 11, 12), (1, 13, 14, 15), (1, 16, 17, 18), (1, 19)]
    assert sum(window.predicted for window in found) == 10
    without = texts.windows(list(range(10, 19)), None, 4, 0, 0)
    assert [window.ids for window in without] == [(10, 11, 12, 13), (14, 15, 16, 17)]  # 18 has nothing before it


RESULT = {
    "ppl_ratio": {"value": 1.005, "low": 1.002, "high": 1.009},
    "kl": {"mean": 0.01, "median": 0.004, "p99": 0.2, "max": 1.0},
    "kl_interval": {"low": 0.008, "high": 0.012},
    "top1": 0.95,
    "top1_interval": {"low": 0.939, "high": 0.96},
}


@pytest.mark.parametrize(
    ("gate", "passed"),
    [
        ("ppl_ratio<=1.009", True),
        ("ppl_ratio<=1.008", False),  # the value keeps it, the upper bound does not
        ("ppl_ratio>=1.002", True),
        ("kl<=0.012", True),
        ("kl <= 0.0119", False),
        ("kl.p99<=0.2", True),
        ("top1>=0.94", False),
        ("top1>=0.93", True),
        ("greedy>=1", False),  # which this result does not have
    ],
)
def test_a_gate_is_compared_with_the_bound_of_the_interval(gate: str, passed: bool) -> None:
    [one] = gates.parse(gate)
    judged = one.judge(RESULT)
    assert judged["passed"] is passed
    assert ("kept" if passed else "missed") in gates.sentence(judged)


@pytest.mark.parametrize(
    "text", ["", "ppl", "ppl_ratio<1", "ppl_ratio<=x", "ppl_ratio<=1e", "foo<=1", "kl<=nan", "kl<=1,,"]
)
def test_an_invalid_gate_is_an_error(text: str) -> None:
    with pytest.raises(UsageError, match="--gate"):
        gates.parse(text)


def test_several_gates_are_all_read() -> None:
    assert [str(gate) for gate in gates.parse("ppl_ratio<=1.008,kl<=0.02, top1>=0.94")] == [
        "ppl_ratio<=1.008", "kl<=0.02", "top1>=0.94"]  # fmt: skip


def test_the_first_difference_of_greedy_texts_is_found() -> None:
    assert [first_difference([1, 2, 3], other) for other in ([1, 2, 3], [1, 5, 3], [4])] == [3, 1, 0]


def test_the_histogram_counts_every_token() -> None:
    kl = np.array([0.0, 1e-9, 1e-5, 0.5, 200.0])
    found = histogram(kl)
    assert sum(found["counts"]) == 5
    assert found["counts"][0] == 2
    assert found["counts"][-1] == 1


def test_charts_are_well_formed_for_any_names_and_numbers() -> None:
    name = "<b>&'\""
    drawn = [
        charts.intervals(name, [(name, Point(1.0, 0.5, math.inf)), ("b", Point(1.0, 1.0, 1.0))], mark=1.0),
        charts.columns(name, {"edges": [0.0, 1.0], "counts": [3, 0]}, "nats"),
        charts.lines(name, {name: [("2026-01-01", Point(1, 1, 1))], "b": [("2026-01-02", Point(2, 1, 3))]}),
    ]
    for chart in drawn:
        figure = ElementTree.fromstring(chart)
        assert figure.find("svg") is not None
        assert "nan" not in chart
        assert "='inf'" not in chart
    assert charts.lines("none", {}) == charts.intervals("none", []) == ""


def test_ticks_are_round_and_within_the_range() -> None:
    assert charts.ticks(0.0, 1.0) == pytest.approx([0.0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert charts.ticks(1.0003, 1.0041)[0] == pytest.approx(1.001)
    assert charts.ticks(5, 5) == [5]


def test_a_history_keeps_the_data_of_charts_and_skips_truncated_lines(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    results.append(path, results.record("quality", {"name": "a", "worst_documents": [1], "candidate": {"formats": {}}}))
    with path.open("a") as file:
        file.write('{"schema": "infeng-qual\n{"schema": "other/1"}\n')
    results.append(path, results.record("quality", {"name": "b"}))
    found = results.history(path)
    assert [one["name"] for one in found] == ["a", "b"]
    assert "worst_documents" not in found[0]
    assert found[0]["candidate"] == {}
    assert len(path.read_text().splitlines()) == 4
    with pytest.raises(UsageError, match="no such file"):
        results.history(tmp_path / "none")


def test_a_truncated_line_damages_no_other_line(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    results.append(path, results.record("quality", {"name": "a"}))
    with path.open("ab") as file:
        file.write(b'{"schema": "infeng-quality/1", "name": "cu')
    results.append(path, results.record("quality", {"name": "b\u2028\udc80"}))
    with path.open("ab") as file:
        file.write(b"\xff\xfe\0\n" + b"[" * 100_000 + b'\n{"schema": "infeng-quality/1", "bytes": NaN}\n')
    results.append(path, results.record("quality", {"name": "c"}))
    assert [one["name"] for one in results.history(path)] == ["a", "b\u2028\udc80", "c"]


def test_an_unwritable_destination_is_reported_before_the_measurement(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("")
    for name, path, says in (
        ("json", tmp_path / "none" / "a.json", "its folder is not there"),
        ("report", tmp_path, "is a directory"),
        ("history", tmp_path / "old" / "a", "its folder is not there"),
    ):
        with pytest.raises(UsageError, match=f"--{name} {path}: {says}"):
            results.require_places(argparse.Namespace(**{name: str(path)}))
    results.require_places(argparse.Namespace(json="-", report=str(tmp_path / "old"), history=str(tmp_path / "new")))
    results.require_places(argparse.Namespace(json="/dev/null", history="/dev/null", report=None))
    assert [path.name for path in tmp_path.iterdir()] == ["old"]


def test_a_result_is_read_back_and_other_files_are_refused(tmp_path: Path) -> None:
    result = results.record("quality", {"x": 1.5})
    results.write(tmp_path / "a.json", result)
    assert results.read(tmp_path / "a.json") == json.loads(json.dumps(result, default=str))
    (tmp_path / "b.json").write_text("{}")
    with pytest.raises(UsageError, match="no result"):
        results.read(tmp_path / "b.json")


def test_every_figure_of_gates_is_documented() -> None:
    page = (Path(__file__).parents[3] / "docs/quality.md").read_text(encoding="utf-8")
    assert [name for name in gates.FIGURES if f"`{name}`" not in page] == []
