"""What a long installation does: one line on a terminal, with the time and the last line of its log."""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path
from typing import TextIO

from infeng_core.api import printable

LOOK_SECONDS = 0.5
"""Seconds between two looks at the log."""

TAIL = 4096  # bytes of a log that are looked at


class Progress:
    """A line that is written again and again, and removed at the end; nothing where there is no terminal."""

    def __init__(self, what: str, log: Path, out: TextIO | None = None) -> None:
        """what: the step. log: the file that its programs write. out: where to show it (standard error)."""
        self._what, self._log = what, log
        self._out = sys.stderr if out is None else out
        self._begin = time.monotonic()
        self.is_shown = self._out.isatty()
        """Whether anybody sees it."""

    def show(self) -> None:
        """Write the line."""
        if not self.is_shown:
            return
        seconds = time.monotonic() - self._begin
        text = f"{self._what}, {int(seconds) // 60}:{int(seconds) % 60:02}  {self._latest()}"
        width = shutil.get_terminal_size().columns - 1
        self._out.write(f"\r\x1b[2K{printable(text, 1000)[:width]}")
        self._out.flush()

    def close(self) -> None:
        """Remove the line."""
        if self.is_shown:
            self._out.write("\r\x1b[2K")
            self._out.flush()

    def _latest(self) -> str:
        """Return the last line of the log that has words."""
        try:
            with self._log.open("rb") as file:
                file.seek(max(0, self._log.stat().st_size - TAIL))
                lines = file.read(TAIL).decode("utf-8", "replace").splitlines()
        except OSError:
            return ""
        return next((line.strip() for line in reversed(lines) if line.strip()), "")
