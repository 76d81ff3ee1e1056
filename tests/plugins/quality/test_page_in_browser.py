"""A browser opens the pages of `infeng quality`: nothing fails, and charts have points that can be seen."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import browser_parts
import pytest

pytest.importorskip("infeng_quality", reason="the quality wheel is not installed")
pytest.importorskip("infeng_demo", reason="the demo wheel is not installed")

from infeng_demo import model_dir
from infeng_quality import page, results

from infeng_core.cli import main

DRAWN = """
return [...document.querySelectorAll('figure')].map(figure => {
  const frame = figure.querySelector('svg').getBoundingClientRect();
  const marks = [...figure.querySelectorAll('.dot, .fill')].map(mark => mark.getBoundingClientRect());
  const inside = mark => mark.left >= frame.left && mark.right <= frame.right
    && mark.top >= frame.top && mark.bottom <= frame.bottom;
  return {title: figure.querySelector('figcaption').textContent, height: frame.height, marks: marks.length,
          seen: marks.filter(inside).length, text: figure.querySelectorAll('text').length};
})
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with browser_parts.chromium(tmp_path_factory.mktemp("chromium")) as driver:
        yield driver


def charts(browser: Any, file: Path) -> dict[str, dict[str, Any]]:
    """Return the charts that a browser draws, by their titles; nothing in the page may complain."""
    browser_parts.complaints(browser)
    browser.get(file.as_uri())
    assert browser_parts.complaints(browser) == []
    found = {chart["title"]: chart for chart in browser.execute_script(DRAWN)}
    for chart in found.values():
        assert chart["height"] > 50 and chart["text"] > 0, chart
        assert chart["marks"] == chart["seen"] > 0, chart
    return found


@pytest.mark.slow
def test_charts_of_a_comparison_and_of_its_history_are_drawn(browser: Any, tmp_path: Path) -> None:
    story = tmp_path / "story.txt"
    story.write_text("Once upon a time there was a little girl named Lily. She liked to play in the park. " * 20)
    out, history = tmp_path / "page.html", tmp_path / "history.jsonl"
    call = ["quality", str(model_dir()), str(model_dir()), "--format", "int4-g64", "--threads", "1"]
    call += ["--texts", str(story), "--tokens", "120", "--context", "32", "--by-tensor", "--by-tensor-tokens", "32"]
    for _ in range(2):
        assert main([*call, "--report", str(out), "--history", str(history)]) == 0
    found = charts(browser, out)
    assert {"Perplexity, times that of f32", "KL of single tokens, nats", "Mean KL, nats", "Bytes"} <= set(found)
    assert found["Mean KL, nats"]["marks"] == 2  # of the history


def test_charts_of_several_candidates_over_time_are_drawn(browser: Any, tmp_path: Path) -> None:
    speed = {"name": "a", "work": "decode <1>", "tokens_per_s": {"value": 9.0, "low": 8.0, "high": 10.0}}
    solved = {"name": "b", "task": "gsm8k", "accuracy": {"value": 0.5, "low": 0.4, "high": 0.6}}
    lines = [("throughput", speed), ("tasks", solved), ("tasks", {**solved, "name": "<i>c</i>"})]
    history = [
        {**results.record(kind, figures), "time": f"2026-01-0{day}"} for day in (1, 2, 3) for kind, figures in lines
    ]
    out = tmp_path / "page.html"
    out.write_text(page.render([], json.loads(json.dumps(history))), encoding="utf-8")
    found = charts(browser, out)
    assert {name: chart["marks"] for name, chart in found.items()} == {"Tokens/s: decode <1>": 3, "Solved: gsm8k": 6}
    assert "<i>c</i>" in browser.find_element("css selector", "body").text
