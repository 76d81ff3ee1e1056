"""Projects that `infeng plugins new` makes, and their checks, run as a newcomer runs them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MAIN = "import sys; from infeng_core.cli import main; sys.exit(main(sys.argv[1:]))"
WORDS = {
    "kernel-c": "my-norm",
    "kernel-cpp": "my_rope",
    "kernel-rust": "my-rust-norm",
    "format": "int5x",
    "op": "clipx",
    "family": "renamedx",
    "tokenizer": "bytesx",
    "policy": "shortestx",
    "processor": "choicex",
    "backend": "bigramx",
    "command": "countx",
    "observer": "linesx",
    "route": "lengthx",
}
"""A name for each kind."""


@dataclass(frozen=True)
class Checked:
    """A report."""

    status: int
    lines: list[dict[str, str]]

    def of(self, state: str) -> list[dict[str, str]]:
        return [line for line in self.lines if line["state"] == state]


def environ(**more: str) -> dict[str, str]:
    """Return an environment without the user's settings of the engine, with Rust where rustup puts it."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("INFENG_")}
    places = [kept.get("PATH", ""), str(Path.home() / ".cargo" / "bin")]
    return {**kept, "PATH": os.pathsep.join(places), **more}


def infeng(*words: object, cwd: Path, **more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-c", MAIN, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, env=environ(**more), cwd=cwd, check=False)


def begun(kind: str, folder: Path) -> Path:
    """Begin a project of a kind; return its folder."""
    done = infeng("plugins", "new", WORDS[kind], "--kind", kind, "--dir", folder, cwd=folder.parent)
    assert done.returncode == 0, done.stderr
    return folder


def checked(project: Path | str, *words: str, cwd: Path) -> Checked:
    """Check a project, and see that every failed line says what to do."""
    done = infeng("plugins", "check", project, "--json", *words, cwd=cwd)
    assert done.stdout, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    found = Checked(done.returncode, report["lines"])
    assert all(line["remedy"] for line in found.of("failed"))
    return found


def has_rust() -> bool:
    return shutil.which("rustc", path=environ()["PATH"]) is not None
