"""docs/isolation.md: each test that it names exists, and is run with the others."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "isolation.md"
NAMED = sorted({*re.findall(r"`(tests/[\w/]+\.py::\w+)`", PAGE.read_text(encoding="utf-8"))})
TABLE = re.compile(r"^\| (?!of another|published|-)(.*) \|$", re.MULTILINE)


def test_every_row_of_the_page_names_a_test() -> None:
    rows = [row for row in TABLE.findall(PAGE.read_text(encoding="utf-8")) if "---" not in row]
    assert len(rows) >= 18
    assert [row[:60] for row in rows if not re.search(r"`tests/[\w/]+\.py::\w+`", row)] == []


@pytest.fixture(scope="module")
def collected() -> str:
    """What pytest would run of the named tests, with the marks of a usual run; slow and nightly ones are not."""
    command = [sys.executable, "-P", "-m", "pytest", "-p", "no:cacheprovider", "--collect-only", "-q"]
    done = subprocess.run(
        [*command, "-m", "not slow and not nightly", *NAMED], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.mark.parametrize("name", NAMED)
def test_a_named_test_exists_and_is_run(name: str, collected: str) -> None:
    assert re.search(rf"^{re.escape(name)}(\[|$)", collected, re.MULTILINE)
    path, _, function = name.partition("::")
    source = (ROOT / path).read_text(encoding="utf-8")
    marks = re.search(rf"((?:^@.*\n(?:^[ \])].*\n)*)*)^def {function}\(", source, re.MULTILINE)
    assert marks is not None
    assert not re.search(r"mark\.(skip|xfail)", marks[1])


@pytest.mark.parametrize("case", ["26207", "47724", "42125", "30931", "CVE-2025-46570"])
def test_a_published_failure_has_a_test_that_names_it(case: str) -> None:
    cases = (ROOT / "tests" / "core" / "engine" / "test_published_failures.py").read_text(encoding="utf-8")
    assert re.search(rf'"""[^"]*{case}', cases)
