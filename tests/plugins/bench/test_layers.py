"""What the packages of `infeng bench` may import of each other."""

import ast
from pathlib import Path

import infeng_bench
import infeng_peers
import infeng_report
import infeng_simulate
import pytest

ROOT = Path(infeng_bench.__file__).parent
STANDALONE = ("serve", "slots", "llama_rows", "oracle_torch", "oracle_kt_kernel")
BROUGHT = ("infeng_peers", "infeng_report", "infeng_simulate")
"""The packages of wheels that bring verbs."""
LOWEST = ("stats", "reports/machine.py", "load/arrivals.py", "models/cache.py")


def imported(file: Path) -> set[str]:
    """Return the modules that a file imports, wherever in it; those of ``TYPE_CHECKING`` are left out."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    skipped = {
        id(node)
        for branch in ast.walk(tree)
        if isinstance(branch, ast.If) and isinstance(branch.test, ast.Name) and branch.test.id == "TYPE_CHECKING"
        for node in branch.body
    }
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and id(node) not in skipped:
            found |= {node.module, *(f"{node.module}.{name.name}" for name in node.names)}
        elif isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
    return found


def files(*places: str) -> list[Path]:
    """Return the modules at some places of the package."""
    return sorted(path for place in places for path in ([ROOT / place] if place.endswith(".py") else
                                                         (ROOT / place).rglob("*.py")))  # fmt: skip


def test_the_wheels_know_each_other_one_way() -> None:
    for path in ROOT.rglob("*.py"):
        assert not any(name.startswith(BROUGHT) for name in imported(path)), path
    for package in (infeng_peers, infeng_report, infeng_simulate):
        others = tuple(name for name in BROUGHT if name != package.__name__)
        for path in Path(package.__file__).parent.rglob("*.py"):
            assert not any(name.startswith(others) for name in imported(path)), path


def test_only_the_command_imports_the_verbs() -> None:
    verbs = ROOT / "verbs"
    others = [path for path in ROOT.rglob("*.py") if verbs not in path.parents]
    assert len(others) > 50
    for path in others:
        assert not any(name.startswith("infeng_bench.verbs") for name in imported(path)), path


@pytest.mark.parametrize("file", STANDALONE)
def test_scripts_for_other_interpreters_import_no_package_of_ours(file: str) -> None:
    assert not any(name.startswith("infeng") for name in imported(Path(infeng_peers.__file__).with_name(f"{file}.py")))


@pytest.mark.parametrize("path", files(*LOWEST), ids=str)
def test_arithmetic_imports_no_engine_and_no_command_line(path: Path) -> None:
    above = ("command", "options", "verbs", "engine", "http", "costs", "peers")
    assert not imported(path) & {f"infeng_bench.{name}" for name in above}
    assert not any(name.startswith(tuple(f"infeng_bench.{one}." for one in above)) for name in imported(path))
