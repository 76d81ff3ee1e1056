"""The transcript of README.md is what `infeng demo` prints, as far as that is the same on every machine."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("infeng_demo", reason="the demo wheel is not installed")

from infeng_core.cli import main

README = Path(__file__).parents[2] / "README.md"
CUT = "..."
MEASURED = re.compile(r"\d+\.\d+ (s|MB)\b|\d+ tokens/s")
"""Times and speeds, and the bytes of an adapter, which depend on the kernels that it is laid out for."""


def transcript() -> list[str]:
    """Return the lines of the block that shows the demo."""
    [block] = re.findall(r"```\n(--- base -.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    return str(block).splitlines()


def parts(lines: list[str]) -> list[list[str]]:
    """Return the lines of each answer, its head first."""
    heads = [place for place, line in enumerate(lines) if line.startswith("--- ")]
    return [lines[begin:end] for begin, end in zip(heads, [*heads[1:], len(lines)], strict=True)]


def test_the_transcript_of_the_readme_is_what_the_demo_prints(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("INFENG_CACHE", str(tmp_path))
    assert main(["demo", "-t", "2"]) == 0
    out, err = capsys.readouterr()
    told = transcript()
    table = next(place for place, line in enumerate(told) if line.split()[:2] == ["op", "what"])
    shown, printed = parts(told[:table]), parts(out.splitlines())
    assert [part[0] for part in shown] == [part[0] for part in printed]
    for part, whole in zip(shown, printed, strict=True):
        if part[-1] == CUT:
            assert len(part) - 1 < len(whole)
            assert part[:-1] == whole[: len(part) - 1]
        else:
            assert part == whole
    figures = [line for line in told[table:] if line.startswith("adapter ") or " requests in one batch" in line]
    assert len(figures) == 3
    for line in figures:
        assert MEASURED.sub("#", line) in MEASURED.sub("#", err)
