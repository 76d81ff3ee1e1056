"""What every result carries, and the files that hold it."""

import csv
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from infeng_bench.reports import results
from infeng_bench.verbs import timed_works

from infeng_core.errors import ResourceError, UsageError

FIGURES = {"figure": 1.5, "measurements": [{"rows": 1, "seconds": {"median": 2.0}}, {"rows": 4, "extra": "x"}]}


def test_every_result_contains_its_machine_and_versions(schema: Any) -> None:
    result = results.record("anything", FIGURES, threads=2, seed=3, work=None)
    schema(result)
    assert result["machine"]["cores"] >= 1
    assert result["versions"]["infeng-core"]
    assert result["features"] == sorted(result["features"])
    assert result["figure"] == 1.5
    assert result["seed"] == 3
    assert "work" not in result


def test_the_schema_refuses_a_result_without_its_machine(schema: Any) -> None:
    import jsonschema

    result = results.record("anything", FIGURES)
    del result["machine"]
    with pytest.raises(jsonschema.ValidationError, match="machine"):
        schema(result)


def test_a_figure_cannot_replace_a_fact_of_the_same_name() -> None:
    with pytest.raises(ValueError, match="machine"):
        results.record("anything", {"machine": 1})


def test_json_is_written_and_read_back(tmp_path: Path) -> None:
    result = results.record("anything", FIGURES)
    results.write(tmp_path / "result.json", result)
    assert results.read(tmp_path / "result.json") == result
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]


def test_csv_has_a_line_per_measurement_with_the_facts_repeated(tmp_path: Path) -> None:
    results.write_csv(tmp_path / "result.csv", results.record("anything", FIGURES, threads=2))
    with (tmp_path / "result.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert [line["rows"] for line in lines] == ["1", "4"]
    assert [line["seconds.median"] for line in lines] == ["2.0", ""]
    assert [line["extra"] for line in lines] == ["", "x"]
    assert all(line["kind"] == "anything" and line["threads"] == "2" and line["machine.cpu"] for line in lines)


def test_csv_of_single_figures_is_one_line() -> None:
    assert len(results.as_csv(results.record("anything", {"figure": 2})).splitlines()) == 2


def test_a_file_that_cannot_be_written_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match="cannot be written"):
        results.write(tmp_path / "missing" / "result.json", {})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not valid JSON"),
        ("[]", "not a result"),
        ('{"schema": "other/1"}', "not a result"),
        (json.dumps({"schema": "infeng-bench/2"}), "has the form infeng-bench/2"),
    ],
)
def test_a_file_of_another_form_is_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "file").write_text(text)
    with pytest.raises(UsageError, match=said):
        results.read(tmp_path / "file")


def test_a_missing_result_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        results.read(tmp_path / "missing")


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as reader:
        text = reader.submit(pipe.read_text)
        results.write(pipe, {"figure": 1})
        assert json.loads(text.result()) == {"figure": 1}
    assert pipe.is_fifo()


def test_a_pipe_without_a_reader_is_an_error_after_a_timeout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "READER_SECONDS", 0.1)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(ResourceError, match="cannot be written"):
        results.write(pipe, {})


def test_a_pipe_given_as_a_result_is_refused_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(UsageError, match=str(pipe)):
        results.read(pipe)


@pytest.mark.parametrize("option", ["--json", "--csv"])
@pytest.mark.parametrize(("place", "why"), [("missing/out", "its folder is not there"), (".", "is a directory")])
def test_an_unwritable_destination_is_reported_before_the_measurement(
    attempt: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str, place: str, why: str
) -> None:
    monkeypatch.setattr(timed_works, "run", lambda arguments: pytest.fail("it measures"))
    status, said = attempt("decode", option, str(tmp_path / place))
    assert status == 2 and why in said
