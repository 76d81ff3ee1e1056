"""From nothing to a kernel of one's own in the engine, by the commands of docs/adding-a-kernel.md."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from kit_parts import MAIN, environ

PAGE = Path(__file__).parents[3] / "docs" / "adding-a-kernel.md"


@pytest.mark.slow
def test_the_page_s_commands_lead_to_a_kernel_that_the_engine_uses(tmp_path: Path) -> None:
    [block] = re.findall(r"```\n(infeng plugins new .*?)```", PAGE.read_text(), re.DOTALL)
    commands = [shlex.split(line.partition("   #")[0]) for line in block.splitlines()]
    assert [words[:3] for words in commands] == [
        ["infeng", "plugins", "new"],
        ["infeng", "plugins", "check"],
        ["pip", "install", "--no-build-isolation"],
        ["infeng", "plugins", "why"],
        ["infeng", "plugins", "bench"],
    ]
    python = newcomer(tmp_path / "environment")
    said = [run(words, python, tmp_path) for words in commands]
    assert "\ngreen: " in said[1]
    assert re.search(r"^  > +my-norm/rmsnorm_c +chosen", said[3], re.MULTILINE)
    assert re.search(r"^kernel rmsnorm_c +rmsnorm, rows 1, .* us ", said[4], re.MULTILINE)
    listed = json.loads(run(["infeng", "plugins", "list", "--json"], python, tmp_path))
    assert {"my-norm": "ready"}.items() <= {item["name"]: item["state"] for item in listed}.items()


def newcomer(place: Path) -> Path:
    """Make an environment with this installation, and with pip; return its Python."""
    venv.create(place, with_pip=False, symlinks=True)
    [site] = place.glob("lib/python*/site-packages")
    (site / "installation.pth").write_text("\n".join(path for path in sys.path if path) + "\n")
    return place / "bin" / "python"


def run(words: list[str], python: Path, folder: Path) -> str:
    """Run one command of the page; return what it says."""
    program = ["-m", "pip", "--disable-pip-version-check"] if words[0] == "pip" else ["-c", MAIN]
    tools = os.pathsep.join([str(Path(sys.executable).parent), environ()["PATH"]])
    command = [str(python), "-P", *program, *words[1:]]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=folder, check=False,
        env=environ(PATH=tools, INFENG_CACHE=str(folder / "cache")),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
