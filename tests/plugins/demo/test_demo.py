"""`infeng demo`: one batch in three voices, the same every time."""

from __future__ import annotations

import pytest

pytest.importorskip("infeng_demo", reason="the demo wheel is not installed")

from infeng_demo.command import KING, REQUESTS

from infeng_core.cli import main


def answers(capsys: pytest.CaptureFixture[str]) -> dict[str, list[str]]:
    """Run the demo; return the texts by who gave them."""
    assert main(["demo", "-n", "40", "-t", "1"]) == 0
    out, err = capsys.readouterr()
    assert "adapter shakespeare: rank 16" in err
    assert "4 requests in one batch, 2 of them on adapters" in err
    found: dict[str, list[str]] = {}
    for part in out.split("--- ")[1:]:
        head, _, text = part.partition("\n")
        found.setdefault(head.split()[0], []).append(text)
    return found


@pytest.mark.slow
def test_the_base_and_two_adapters_answer_in_their_own_ways(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
):
    monkeypatch.setenv("INFENG_CACHE", str(tmp_path_factory.mktemp("cache")))
    found = answers(capsys)
    assert sorted(found) == ["base", "python", "shakespeare"]
    assert sorted(map(len, found.values())) == [1, 1, 2]
    assert sum(len(texts) for texts in found.values()) == len(REQUESTS)
    (story,) = [text for text in found["base"] if text.startswith(KING)]
    (verse,) = found["shakespeare"]
    assert verse.startswith(KING)
    assert story != verse
    assert verse.count("\n") > story.count("\n"), "verses are shorter than sentences"
    assert "\ndef " in found["python"][0]
    assert answers(capsys) == found
