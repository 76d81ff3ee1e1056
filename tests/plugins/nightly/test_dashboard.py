"""The page of a history: a sentence and a chart first, and all that a browser needs is in it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import browser_parts
import pytest
from nightly_parts import COST, LOSS, Nights, run_of, steady

pytest.importorskip("infeng_nightly", reason="the nightly wheel is not installed")

from infeng_nightly import dashboard, history, night
from infeng_nightly.history import Run

from infeng_core.cli import main

OTHER = {"cpu": "Other <b>1</b>", "cores": 4}


def nights() -> list[Run]:
    """Return five runs of one processor, the last of which is slower, two of another one, and a peer."""
    found: list[Run] = []
    for day in range(1, 6):
        value = 80.0 if day == 5 else 100.0 + day
        figures = [
            steady(value, work="decode:rows=1"),
            steady(0.07, LOSS, what="quality"),
            steady(0.1, COST, what="tax"),
        ]
        figures.append(steady(50.0, work="decode:rows=1", engine="llama_cpp"))
        kernels = {"demo": ("linear: avx2/k" if day == 5 else "linear: avx512/k",)}
        run = run_of(figures, f"2026-01-0{day}T02:30:00+00:00", commit=f"c{day}", kernels=kernels)
        judged = night.judge(run, found)
        found.append(replace(run, judged=tuple(one.to_dict() for one in judged)))
    found += [run_of([steady(300.0, work="decode:rows=1")], f"2026-01-0{day}", machine=OTHER) for day in (2, 3)]
    return sorted(found, key=lambda run: run.time)


def shown(text: str) -> str:
    """Return what of a page is neither script nor style."""
    return re.sub(r"<(script|style)[^>]*>.*?</\1>", "", text, flags=re.DOTALL)


def test_the_page_begins_with_a_sentence_and_a_chart_and_folds_the_rest() -> None:
    text = dashboard.page(nights())
    lead = re.search(r"<p class='lead'>(.*?)</p>", text)
    assert lead is not None
    assert lead[1].startswith("demo: decoding, decode:rows=1: 80.0 tokens/s on Made-up 9000, 2 cores, -2")
    assert lead[1].endswith("1 figure became worse in the last run: demo: decoding, decode:rows=1.")
    assert text.index("class='lead'") < text.index("Plotly.newPlot(") < text.index("<details>") < text.rindex("<table>")
    assert text.count("Plotly.newPlot(") == 4  # speed with quality; then the three figures
    assert not re.search(r"<(script|link|img)[^>]*(src|href)=", text)  # nothing to download


def test_what_changed_since_the_run_before_is_listed() -> None:
    text = shown(dashboard.page(nights()))
    assert "What changed since 2026-01-04 02:30" in text
    assert "<td>commit</td><td>c4</td><td>c5</td>" in text
    assert "<td>kernels of demo</td><td>linear: avx512/k</td><td>linear: avx2/k</td>" in text
    assert "Worse and better in the last run" in text
    quiet = shown(dashboard.page(nights()[:2]))
    assert "What changed since" not in quiet or "the same" in quiet or "commit" in quiet
    assert "This is the first run of this processor" in shown(dashboard.page(nights()[:1]))
    same = [run_of([steady()], "2026-01-01"), run_of([steady()], "2026-01-02")]
    assert "are the same" in shown(dashboard.page(same)) and "nothing became worse" in shown(dashboard.page(same))


def test_markup_in_a_history_stays_text() -> None:
    name = "<img src=x onerror=alert(1)>"
    figures = [steady(model=name, what=name, work=name, engine=name), steady(model=name)]
    facts: dict[str, Any] = {"commit": name, "versions": {name: name}, "machine": {"cpu": name, "cores": name}}
    runs = [run_of(figures, name, **facts), run_of(figures, "2", **{**facts, "commit": "x", "versions": {}})]
    runs[1] = replace(
        runs[1], judged=({"figure": name, "verdict": "worse", "change": name, "low": None, "high": 1e400},)
    )
    text = dashboard.page(runs)
    assert "<img" not in shown(text)
    assert "<img" not in re.sub(
        r"<script>[^<]*plotly\.js.*?</script>", "", text[text.index("<body>") :], flags=re.DOTALL
    )


def test_a_history_of_many_figures_and_runs_has_a_bounded_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dashboard, "MOST_CHARTS", 3)
    monkeypatch.setattr(dashboard, "MOST_RUNS", 2)
    figures = [steady(what=f"decode {number}") for number in range(9)]
    text = dashboard.page([run_of(figures, f"2026-01-{day}") for day in range(10, 20)])
    assert text.count("Plotly.newPlot(") == 4 and "All runs: 2" in text


def test_the_command_writes_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place, page = tmp_path / "history.jsonl", tmp_path / "page.html"
    with history.opened(place) as file:
        for run in nights():
            file.append(run)
    assert main(["dashboard", str(place), "-o", str(page)]) == 0
    assert "7 runs" in capsys.readouterr().out and "class='lead'" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "text", ["", "{}\n", '{"schema": "infeng-nightly/1", "time": "x", "machine": {}, "figures": []}\n']
)
def test_a_history_without_runs_is_an_error(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place, page = tmp_path / "history.jsonl", tmp_path / "page.html"
    place.write_text(text)
    assert main(["dashboard", str(place), "-o", str(page)]) == 2
    assert "there is no run in it" in capsys.readouterr().err and not page.exists()
    assert main(["dashboard", str(tmp_path / "none"), "-o", str(page)]) == 2
    assert "does not exist yet" not in capsys.readouterr().err, "nothing is measured by this command"
    assert main(["dashboard", str(place), "-o", str(tmp_path / "none" / "page.html")]) == 2


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with browser_parts.chromium(tmp_path_factory.mktemp("chromium")) as driver:
        yield driver


@pytest.mark.slow
def test_a_browser_draws_every_chart_and_clips_no_table(browser: Any, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    drawn = Nights(7)
    runs = [*nights(), *(drawn.night().run(f"2026-02-{day}") for day in range(10, 15))]
    page.write_text(dashboard.page(runs), encoding="utf-8")
    browser_parts.complaints(browser)
    browser.get(page.as_uri())
    for fold in browser.find_elements("css selector", "summary"):
        fold.click()
    assert browser_parts.complaints(browser) == []
    plots = browser.execute_script(
        "return [...document.querySelectorAll('.js-plotly-plot')].map(plot => "
        "[plot.querySelectorAll('.points path').length, plot.getBoundingClientRect().height])"
    )
    assert len(plots) == 1 + 3 + 10 and all(points > 0 and height > 100 for points, height in plots)
    sizes = browser.execute_script("const page = document.documentElement; return [page.scrollWidth, page.clientWidth]")
    assert sizes[0] <= sizes[1]
