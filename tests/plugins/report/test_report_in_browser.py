"""A browser opens reports of every kind of result: no script fails, every chart is drawn."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import browser_parts
import pytest
from infeng_report import html
from infeng_report.charts import Figures
from report_parts import ceilings, compared, compared_twice, gemms, swept

from infeng_core.cli import main

CHARTS = {"compare": 2, "gemm": 1, "roofline": 0, "simulate": 3, "zipf": 3}
"""Of a page of one result: a comparison has its ratios and its rates; other kinds have tables alone."""

DRAWN = """
return [...document.querySelectorAll('.js-plotly-plot')].map(plot => ({
  title: plot.layout.title.text,
  size: plot.getBoundingClientRect().height,
  shapes: plot.querySelectorAll('.point, .points path, .lines path, .js-line, .trace path').length,
}))
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with browser_parts.chromium(tmp_path_factory.mktemp("chromium")) as driver:
        yield driver


def opened(browser: Any, results: list[dict[str, Any]], folder: Path) -> list[dict[str, Any]]:
    """Return the charts that a browser draws of a report on ``results``; nothing in it may complain."""
    files = [folder / f"{number}-{result['kind']}.json" for number, result in enumerate(results)]
    for file, result in zip(files, results, strict=True):
        file.write_text(json.dumps(result))
    out = folder / "report.html"
    assert main(["bench", "report", *map(str, files), "-o", str(out)]) == 0
    browser_parts.complaints(browser)
    browser.get(out.as_uri())
    assert browser_parts.complaints(browser) == []
    charts: list[dict[str, Any]] = browser.execute_script(DRAWN)
    for chart in charts:
        assert chart["size"] > 100 and chart["shapes"] > 0, chart
    return charts


def measured(tmp_path: Path, config: Path, verb: str, *more: str) -> dict[str, Any]:
    """Return what a verb measures on the tiny model."""
    out = tmp_path / f"{verb}.json"
    call = ["bench", verb, "--synthetic", str(config), "-t", "1", "--json", str(out), *more]
    assert main(call) == 0
    found: dict[str, Any] = json.loads(out.read_text())
    return found


@pytest.fixture(scope="module")
def simulated(tiny_config: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return two policies under traffic of several tenants, on a virtual clock."""
    load = ["--load", "tenants:greedy=5,others=2,prompt=8:40,output=4", "--requests", "60", "--policies", "fcfs"]
    return measured(tmp_path_factory.mktemp("simulated"), tiny_config, "simulate", "--costs", "default", *load)


@pytest.mark.slow
@pytest.mark.parametrize("make", [compared, compared_twice, gemms, ceilings, swept], ids=lambda make: make.__name__)
def test_charts_of_one_result_are_drawn(browser: Any, tmp_path: Path, make: Any) -> None:
    result = make()
    apart = 1 if make is compared_twice else 0  # decode and prefill have a chart each
    assert len(opened(browser, [result], tmp_path)) == CHARTS[result["kind"]] + apart
    if make is compared_twice:  # its model is called <i>x</i>, which is text in charts as it is in tables
        assert "<i>x</i> int4-g64" in browser.find_element("css selector", ".js-plotly-plot .yaxislayer-above").text


@pytest.mark.slow
def test_charts_of_a_simulation_are_drawn(browser: Any, tmp_path: Path, simulated: dict[str, Any]) -> None:
    assert len(opened(browser, [simulated], tmp_path)) == CHARTS["simulate"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("verb", "more", "charts"),
    [
        ("decode", ["--rounds", "1", "--context", "8"], 2),  # and the cores
        ("lora-tax", ["--adapters", "1", "--rank", "2", "--context", "8", "--steps", "2", "--pairs", "5"], 3),
        ("swap", ["--rows", "1", "--context", "8", "--rank", "2", "--pairs", "2"], 2),
    ],
)
def test_charts_of_what_an_engine_did_are_drawn(
    browser: Any, tmp_path: Path, tiny_config: Path, verb: str, more: list[str], charts: int
) -> None:
    result = measured(tmp_path, tiny_config, verb, *more)
    result["contention"] = {name: one for name, one in result["contention"].items() if name != "withheld"}
    result["contention"]["is_quiet"] = True  # whatever else ran here meanwhile
    counted = {"0": {"busy": 0.9, "stolen": 0.0}, "1": {"busy": 0.5, "stolen": 0.1}}
    result.setdefault("core_use", counted)  # which is left out where nothing took a hundredth of a second
    assert len(opened(browser, [result], tmp_path)) == charts


@pytest.mark.slow
def test_a_chart_in_a_section_that_folds_has_its_size_when_it_is_opened(browser: Any, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    figures = Figures()
    chart = figures.of(compared())[0]
    page.write_text(html.document("t", html.folded("more", chart), figures.script))
    browser.get(page.as_uri())
    browser.find_element("css selector", "summary").click()
    browser.implicitly_wait(1)
    wide = "const plot = document.querySelector('.js-plotly-plot .main-svg'); return plot.getBoundingClientRect().width"
    for _ in range(50):
        if browser.execute_script(wide) > 600:
            return
        time.sleep(0.05)
    raise AssertionError(browser.execute_script(wide))


@pytest.mark.slow
def test_wide_tables_scroll_and_the_page_does_not(browser: Any, tmp_path: Path) -> None:
    opened(browser, [swept(), compared_twice()], tmp_path)
    browser.execute_script("document.querySelectorAll('details').forEach(fold => fold.open = true)")
    sizes = browser.execute_script("const page = document.documentElement; return [page.scrollWidth, page.clientWidth]")
    assert sizes[0] <= sizes[1]


def test_a_result_without_charts_is_a_page_without_their_library(browser: Any, tmp_path: Path) -> None:
    assert opened(browser, [ceilings()], tmp_path) == []
    assert len((tmp_path / "report.html").read_text()) < 100_000


@pytest.mark.slow
def test_charts_of_results_of_every_kind_stand_on_one_page(
    browser: Any, tmp_path: Path, simulated: dict[str, Any]
) -> None:
    charts = opened(browser, [ceilings(), gemms(), compared(), swept(), simulated], tmp_path)
    assert len(charts) == sum(CHARTS.values()) - 1  # the ratios of both comparisons are one chart
    assert charts[0]["title"].startswith("Ratio of tokens/s")


@pytest.mark.slow
def test_the_test_detects_a_missing_chart_library(browser: Any, tmp_path: Path) -> None:
    opened(browser, [compared()], tmp_path)
    page = tmp_path / "report.html"
    text = page.read_text()
    page.write_text(text[: text.index("<script>")] + text[text.index("</head>") :])
    browser.get(page.as_uri())
    assert "Plotly is not defined" in str(browser_parts.complaints(browser))
