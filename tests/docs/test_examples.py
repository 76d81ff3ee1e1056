"""The examples of the documentation run as they stand, in a checkout, with the embedded model."""

import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def blocks(page: str, language: str) -> list[str]:
    """Return the fenced blocks of one language, in order."""
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


PAGES = ("README.md", "docs/python-api.md", "docs/adapters.md", "docs/chat.md", "docs/structured-output.md")
PYTHON = [(page, code) for page in PAGES for code in blocks(page, "python")]
WITH_COMMANDS = ("docs/cli.md", "docs/gguf.md", "docs/adapters.md", "docs/chat.md")
COMMANDS = [line for page in WITH_COMMANDS for block in blocks(page, "sh") for line in block.splitlines()]


@pytest.mark.parametrize(("page", "code"), PYTHON, ids=[f"{page}-{i}" for i, (page, _) in enumerate(PYTHON)])
def test_a_python_example_runs(page: str, code: str) -> None:
    done = subprocess.run([sys.executable, "-P", "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_the_commands_of_the_command_line_page_run_in_order() -> None:
    scripts = sysconfig.get_path("scripts")
    environment = {**os.environ, "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"}
    assert len(COMMANDS) >= 10
    for command in COMMANDS:
        done = subprocess.run(
            ["bash", "-c", command], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, f"{command}\n{done.stderr}"
        assert done.stdout or " -o " in command, command
