"""Pages of the documentation: links that lead somewhere, and an architecture that fits on one page."""

import re
from pathlib import Path

import pytest

from infeng_core.plug.wheels import WHEELS

ROOT = Path(__file__).parents[2]
PAGES = sorted({*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("plugins/*/README.md")}
               - {ROOT / "CHANGELOG.md"})  # fmt: skip
LINK = re.compile(r"\]\(([^)\s]+)\)")
MOST_WORDS = 1000


def prose(page: Path) -> str:
    """Return the text of a page without its fenced blocks and its quoted code."""
    fenced = re.sub(r"^ *```.*?^ *```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`\n]*`", lambda code: code[0].strip("`").replace("](", "] ("), fenced)


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as they are made from their words."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    bare = (re.sub(r"[^\w\- ]", "", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", each)).lower() for each in headings)
    return {each.strip().replace(" ", "-") for each in bare}


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_every_link_to_a_page_leads_to_a_page_and_a_heading_that_exist(page: Path) -> None:
    wrong = []
    for link in LINK.findall(prose(page)):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            wrong.append(link)
    assert not wrong


def test_the_architecture_is_one_page_with_eight_steps_of_a_request_and_a_line_for_each_room() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert len(text.split()) <= MOST_WORDS
    life = text.split("## The life of a request")[1].split("\n## ")[0]
    assert re.findall(r"^(\d+)\. \*\*", life, re.MULTILINE) == [str(number) for number in range(1, 9)]
    rooms = {path.name for path in (ROOT / "infeng_core").iterdir() if path.is_dir() and path.name != "__pycache__"}
    missing = [room for room in sorted(rooms) if text.count(f"| `infeng_core/{room}/` |") != 1]
    assert not missing


def test_the_page_of_speculation_names_the_wheel_of_each_drafter() -> None:
    text = (ROOT / "docs" / "speculation.md").read_text(encoding="utf-8")
    rows = {name: f"`{wheel}`" for name, wheel in WHEELS["drafters"].items()}
    found = dict(re.findall(r"^\| `(\w+)` \|.*\| (\S+) \|$", text, re.MULTILINE))
    assert found.items() >= rows.items() and len(rows) == 2
