"""A model's text reaches a file byte for byte, and a terminal without control characters."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from infeng_core.errors import without_controls

HOSTILE = "a\tb\n\x1b]0;title\x07\x1b[2J\x9b31m\r\x7f\u00e9\u200f"
CODE = "import sys; from infeng_core.cli import main; sys.exit(main(sys.argv[1:]))"


def shown(command: list[str]) -> bytes:
    """Return what ``command`` writes to a terminal."""
    master, slave = pty.openpty()
    with subprocess.Popen(command, stdout=slave, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        os.close(slave)
        seen = b""
        while True:
            try:
                part = os.read(master, 65536)
            except OSError:  # how a terminal says that its last writer is gone
                break
            if not part:
                break
            seen += part
        assert process.wait(60) == 0, process.stderr and process.stderr.read()
    os.close(master)
    return seen


@pytest.mark.slow
@pytest.mark.parametrize("more", [["--echo"], ["--echo", "-p", "second"], ["--echo", "--json"]])
def test_escapes_in_a_text_reach_pipes_but_never_a_terminal(tiny: Path, more: list[str]):
    words = ["run", str(tiny), "-p", HOSTILE, *more, "-n", "1", "--temperature", "0", "-t", "1"]
    command = [sys.executable, "-P", "-c", CODE, *words]
    piped = subprocess.run(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, check=True).stdout.decode()
    if "--json" not in more:
        assert HOSTILE in piped
    seen = shown(command).decode().replace("\r\n", "\n")
    assert not [c for c in seen if c in HOSTILE and c not in "\t\n" and not c.isprintable() and c != "\u200f"]
    if "--json" not in more:  # which has times in it
        assert seen.rstrip("\n") == without_controls(piped).rstrip("\n")


@pytest.mark.parametrize("number", [*range(32), 127, *range(128, 160)])
def test_each_control_character_but_tabs_and_line_ends_is_made_harmless(number: int):
    assert without_controls(f"a{chr(number)}b") == ("a\ufffdb" if chr(number) not in "\t\n" else f"a{chr(number)}b")
