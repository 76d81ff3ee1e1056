"""The page of results: its figures stand in the lab, and its chart is drawn from its table."""

import importlib.util
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "performance.md").read_text(encoding="utf-8")


def drawing() -> Any:
    spec = importlib.util.spec_from_file_location("headline", DOCS / "pictures" / "headline.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_ratio_of_the_page_is_in_the_lab_with_its_setup() -> None:
    lab = "".join(page.read_text(encoding="utf-8") for page in sorted((DOCS / "lab").glob("*.md")))
    ratios = re.findall(r"(\d+\.\d+) x|at least (\d+\.\d+)|\*\*(\d+\.\d+)\*\*", PAGE)
    figures = {figure for found in ratios for figure in found if figure}
    assert len(figures) > 40
    assert not {figure for figure in figures if not re.search(rf"(?<![\d.]){re.escape(figure)}(?!\d)", lab)}


def test_every_figure_names_a_run_that_a_table_explains() -> None:
    lines = [line.strip("|").split("|") for line in PAGE.splitlines() if line.startswith("| ")]
    named = {line[-1].strip() for line in lines if len(line) > 4} - {"run"}
    explained = [line[0].strip() for line in lines if len(line) == 3 and re.fullmatch(r" [A-Z] ", line[0])]
    assert sorted(named) == sorted(explained)


def test_the_chart_is_drawn_from_the_table() -> None:
    module = drawing()
    drawn = module.picture(PAGE)
    assert (DOCS / "pictures" / "headline.svg").read_text(encoding="utf-8") == drawn
    texts = [text.text for text in ElementTree.fromstring(drawn).iter("{http://www.w3.org/2000/svg}text")]
    works = module.rows(PAGE)
    assert len(works) >= 5
    for work, llama, openvino in works:
        assert {work, f"{llama:.2f} x"} <= set(texts)
        assert openvino is None or f"{openvino:.2f} x" in texts


def test_a_chart_changes_with_its_table() -> None:
    module = drawing()
    assert module.picture(PAGE.replace("**1.64 x**", "**1.65 x**", 1)) != module.picture(PAGE)
