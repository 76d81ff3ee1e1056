"""`infeng bench memory`: what a model takes, in processes of its own, beside what was said."""

import json
from pathlib import Path
from typing import Any

import pytest
from infeng_bench.reports import results
from infeng_bench.verbs import memory

from infeng_core.cli import main


@pytest.mark.slow  # four processes
def test_a_drawn_model_is_measured_and_removed_afterwards(
    moe_config: Path, cache: Path, tmp_path: Path, schema: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    words = ("--context", "64", "--set", "threads.count=1", "--json", str(out))
    assert main(["bench", "memory", "--synthetic", str(moe_config), *words]) == 0
    result = results.read(out)
    schema(result)
    [line] = result["measurements"]
    assert (line["model"], line["family"], line["tokens"], result["context"]) == ("moe", "qwen3_moe", 4, 64)
    assert line["made_bytes"] == line["weight_bytes"] and result["left_out"] == []
    parts = ("weight_bytes", "kv_bytes", "scratch_bytes", "process_bytes")
    assert line["memory_bytes"] == sum(line[part] for part in parts)
    assert line["ratio"] == line["measured_bytes"] / line["memory_bytes"] and 0.5 < line["ratio"] < 2
    assert line["measured_bytes"] == line["anonymous_bytes"] + line["mapped_bytes"] <= 1.01 * line["peak_bytes"]
    assert not list((cache / "bench").glob("memory-*")), "what was made is gone"
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith("| model | parameters |") and shown[2].startswith("| moe | 0.00 B |")


def test_a_model_beyond_the_memory_limit_is_skipped_and_named(
    monkeypatch: pytest.MonkeyPatch, tiny_config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = [{"nbytes": 1, "convert_bytes": 1}, [{"family": "llama", "parameters": 1, **dict.fromkeys(memory.SAID, 9)}]]
    monkeypatch.setattr(memory, "_told", lambda command: said.pop(0))
    assert main(["bench", "memory", "--synthetic", str(tiny_config), "--most", "8", "--json", "-"]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["measurements"] == [] and said == []
    assert "tiny was left out: it takes 0.00 GB, 0.00 GB are allowed" in told.err


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--synthetic", "llama-3.2-2b"), "did you mean `llama-3.2-3b`"),
        (("--context", "4"), "leaves no room for a prompt"),
        (("--synthetic", "TINY", "--format", "int4-g46"), "infeng: error: "),
    ],
)
def test_invalid_options_are_errors(
    words: tuple[str, ...], why: str, tiny_config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [str(tiny_config) if word == "TINY" else word for word in words]
    assert main(["bench", "memory", *given]) != 0
    assert why in capsys.readouterr().err
