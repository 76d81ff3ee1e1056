"""The examples of the documentation run as they stand, in a checkout, with the embedded model."""

import os
import re
import shlex
import subprocess
import sysconfig
from pathlib import Path

import pytest

from infeng_core.cli import main

ROOT = Path(__file__).parents[2]


def blocks(page: str, language: str) -> list[str]:
    """Return the fenced blocks of one language, in order."""
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


PAGES = ("README.md", "docs/python-api.md", "docs/adapters.md", "docs/chat.md", "docs/structured-output.md")
PYTHON = [(page, code) for page in PAGES for code in blocks(page, "python")]
WITH_COMMANDS = ("docs/cli.md", "docs/gguf.md", "docs/adapters.md", "docs/chat.md")
COMMANDS = [(page, block) for page in WITH_COMMANDS for block in blocks(page, "sh")]


def numbered(found: list[tuple[str, str]]) -> list[str]:
    return [f"{page}-{place}" for place, (page, _) in enumerate(found)]


@pytest.fixture(autouse=True)
def in_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a reader would try them."""
    monkeypatch.chdir(ROOT)


@pytest.mark.parametrize(("page", "code"), PYTHON, ids=numbered(PYTHON))
def test_a_python_example_runs(page: str, code: str, capfd: pytest.CaptureFixture[str]) -> None:
    exec(compile(code, page, "exec"), {"__name__": "__main__"})
    assert capfd.readouterr().out


def called(command: str, capfd: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """Return status, output and errors of a command: of ``infeng`` in this process, else of a shell."""
    words = shlex.split(command)
    if words[0] == "infeng" and not {"|", ">", "<"} & set(command):
        try:
            status = main(words[1:])
        except SystemExit as end:
            status = int(end.code or 0)
        return status, *capfd.readouterr()
    path = f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path}
    done = subprocess.run(["bash", "-c", command], env=environment, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("page", "block"),
    [pytest.param(*each, id=name, marks=[pytest.mark.slow] * ("infeng bench" in each[1]))
     for each, name in zip(COMMANDS, numbered(COMMANDS), strict=True)],
)  # fmt: skip
def test_the_commands_of_a_page_run_in_order(page: str, block: str, capfd: pytest.CaptureFixture[str]) -> None:
    for command in block.splitlines():
        status, out, err = called(command, capfd)
        assert status == 0, f"{command}\n{err}"
        assert out or " -o " in command, command
