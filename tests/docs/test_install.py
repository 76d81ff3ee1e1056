"""What the pages say of installing wheels is true as far as it can be tried here: without an index."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md", *sorted((ROOT / "plugins").glob("*/README.md"))]
COMMAND = re.compile(r"(?:^|`)(pip (?:install|download) [^`\n]*)", re.MULTILINE)
DEPENDENCY = re.compile(r"infeng(?:-[a-z0-9]+|(?:\[[a-z]+\])?)")


def commands() -> list[tuple[str, list[str]]]:
    """Return page and words of each command that installs wheels of the engine by their names."""
    found = []
    for page in PAGES:
        for command in COMMAND.findall(page.read_text()):
            words = shlex.split(command, comments=True)
            if any(DEPENDENCY.fullmatch(word) for word in words):
                found.append((page.name, words))
    return found


def test_documented_pip_commands_find_wheels_in_a_folder():
    assert len(commands()) >= 5
    for page, words in commands():
        assert "--find-links" in words, (page, words)


def test_installs_without_an_index_follow_a_download_of_their_dependencies():
    """Else pip lacks what the wheels depend on."""
    for page, words in commands():
        if "--no-index" in words:
            fetched = [other for name, other in commands() if name == page and other[1] == "download"]
            assert [DEPENDENCY.findall(" ".join(words))] == [DEPENDENCY.findall(" ".join(one)) for one in fetched], page


@pytest.mark.slow
def test_every_named_wheel_belongs_to_the_project():
    projects = {tomllib.loads(path.read_text())["project"]["name"] for path in ROOT.glob("**/pyproject.toml")}
    for page, words in commands():
        assert {word.partition("[")[0] for word in words if DEPENDENCY.fullmatch(word)} <= projects, (page, words)


@pytest.mark.slow
def test_pip_takes_the_client_s_wheel_from_the_folder_as_the_page_says(tmp_path: Path):
    pytest.importorskip("mesonpy", reason="nothing builds wheels here")
    [words] = [words for page, words in commands() if page == "client.md"]
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w"]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # where Ninja is
    source = str(ROOT / "plugins" / "client")
    subprocess.run(
        [*build, str(tmp_path / "dist"), source], check=True, capture_output=True, env={**os.environ, "PATH": path}
    )
    tried = ["--dry-run", "--ignore-installed", "--no-deps", "--no-index"]
    command = [sys.executable, "-m", *words, *tried]
    done = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True)
    assert "Would install infeng-client-" in done.stdout
