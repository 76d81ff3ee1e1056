"""The process of one check: ``python -m infeng_kit.child SECTION PLAN FD``.

It writes JSON to file descriptor FD, one line each: ``["begin", text]`` before anything that may crash, ``["line",
{...}]`` for an outcome, ``["answer", text]`` once.
"""

from __future__ import annotations

import json
import math
import os
import resource
import sys
from dataclasses import asdict
from pathlib import Path

from infeng_kit.report import Line

CPU_S = 30
"""Processor time from one ``begin`` to the next, of all threads together."""
MEMORY = 16 << 30
"""Bytes of address space: of Python, of a tiny model, and of cases."""


class Teller:
    """What a check says to the process that reports."""

    def __init__(self, handle: int) -> None:
        """Write to a file descriptor."""
        self._file = os.fdopen(handle, "w", encoding="utf-8")

    def begin(self, text: str) -> None:
        """Say what begins, and grant CPU_S seconds for it."""
        used = resource.getrusage(resource.RUSAGE_SELF)
        limit = math.ceil(used.ru_utime + used.ru_stime) + CPU_S
        resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.getrlimit(resource.RLIMIT_CPU)[1]))
        self._say("begin", text)

    def line(self, line: Line) -> None:
        """Report an outcome."""
        self._say("line", asdict(line))

    def answer(self, text: str) -> None:
        """Answer a question of the process that reports."""
        self._say("answer", text)

    def _say(self, kind: str, value: object) -> None:
        self._file.write(json.dumps([kind, value]) + "\n")
        self._file.flush()


def main() -> int:
    """Run one section."""
    from infeng_kit.checks import section
    from infeng_kit.plan import Plan

    name, _, argument = sys.argv[1].partition(":")
    plan = Plan.read(Path(sys.argv[2]))
    teller = Teller(int(sys.argv[3]))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if not plan.sanitized:  # a sanitizer reserves terabytes of addresses
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))
    teller.begin(sys.argv[1].replace(":", " "))
    section(name)(plan, argument, teller)
    return 0


if __name__ == "__main__":
    sys.exit(main())
