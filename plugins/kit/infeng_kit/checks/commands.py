"""A command: its help, and one run with the words that the project gives."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from infeng_kit.report import failed, ok, skipped

if TYPE_CHECKING:
    from infeng_kit.child import Teller
    from infeng_kit.plan import Plan

SECONDS = 170.0
"""Of one run."""
MAIN = "import sys; from infeng_core.cli import main; sys.exit(main(sys.argv[1:]))"
"""Runs `infeng` with the words that follow."""


def check(plan: Plan, name: str, teller: Teller) -> None:
    """Report the status of `infeng NAME --help` and of a run."""
    part = f"command {name}"
    words = plan.options.get("commands", {}).get(name)
    teller.begin(f"infeng {name} --help")
    status, said = _run([name, "--help"])
    if status != 0:
        teller.line(failed(part, f"infeng {name} --help has status {status}: {said}", "look at configure()"))
        return
    teller.line(ok(part, "its help is shown"))
    if words is None:
        remedy = f"give its words: [tool.infeng-kit.commands] {name} = [...] in pyproject.toml"
        teller.line(skipped(part, "it is not run", remedy))
        return
    given = [str(plan.tiny()) if word == "MODEL" else str(word) for word in words]
    teller.begin(f"infeng {name} {' '.join(map(str, words))}")
    status, said = _run([name, *given])
    if status == 0:
        teller.line(ok(part, f"infeng {name} {' '.join(map(str, words))} says: {said}"))
    else:
        teller.line(failed(part, f"infeng {name} has status {status}: {said}", "look at run()"))


def _run(words: list[str]) -> tuple[int, str]:
    """Run `infeng` with words; return its status and its last line."""
    command = [sys.executable, "-P", "-c", MAIN, *words]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return -1, f"it has not ended within {SECONDS:g} s"
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    return done.returncode, lines[-1][:200] if lines else ""
