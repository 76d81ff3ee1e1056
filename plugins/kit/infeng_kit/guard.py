"""Checks in a process of their own, within bounds of time and memory: a plugin that crashes is a line of the report."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from infeng_kit.report import Line, failed

SILENT_S = 180.0
"""Seconds without a word after which a process is given up; checks that compute say what they begin."""
_KEPT = 1 << 16
"""Bytes of the end of a process's output, in which the report looks for an error."""


def run(command: Sequence[str], environ: Mapping[str, str], folder: Path, part: str) -> tuple[list[Line], str]:
    """Run a process of ``child.py`` to its end; return its lines and its answer, "" without one.

    A process that is killed, that ends early or that says nothing for SILENT_S adds a failed line about ``part``.
    """
    reader, writer = os.pipe()
    with tempfile.TemporaryFile(dir=folder) as errors:
        try:
            child = subprocess.Popen(
                [*command, str(writer)],
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                pass_fds=[writer],
                cwd=folder,
                env=dict(environ),
                start_new_session=True,
            )
        finally:
            os.close(writer)
        heard = _Heard()
        is_over = False
        try:
            is_over = heard.until_end(reader)
        finally:
            _end(child, SILENT_S if is_over else 0.0)
            os.close(reader)
        if is_over and child.returncode == 0:
            return heard.lines, heard.answer
        errors.seek(max(0, errors.seek(0, os.SEEK_END) - _KEPT))
        said = _telling(errors.read().decode("utf-8", errors="replace").splitlines())
    why, remedy = _death(child.returncode) if is_over else (f"it said nothing for {SILENT_S:g} s", _LOOP)
    if is_over and child.returncode > 0 and said:
        why += f": {said}"
    return [*heard.lines, failed(part, f"{why}, in {heard.begun}", remedy)], heard.answer


class _Heard:
    """What a process has said."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.answer, self.begun = "", "the beginning"

    def until_end(self, reader: int) -> bool:
        """Read until the process ends; return False if it falls silent."""
        pending, deadline = b"", time.monotonic() + SILENT_S
        while select.select([reader], [], [], max(0.0, deadline - time.monotonic()))[0]:
            chunk = os.read(reader, 1 << 16)
            if not chunk:
                return True
            deadline = time.monotonic() + SILENT_S
            *whole, pending = (pending + chunk).split(b"\n")
            for text in whole:
                self._take(text)
        return False

    def _take(self, text: bytes) -> None:
        try:
            kind, value = json.loads(text)
            if kind == "line":
                self.lines.append(Line(**value))
            elif kind == "begin":
                self.begun = str(value)
            elif kind == "answer":
                self.answer = str(value)
        except (ValueError, TypeError):
            pass  # a plugin wrote to this file


def _end(child: subprocess.Popen[bytes], seconds: float) -> None:
    """End a process with all that it started, unless it ends by itself within ``seconds``."""
    try:
        child.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def _telling(lines: Sequence[str]) -> str:
    """Return the line that says what is wrong: a sanitizer's summary, else the last one."""
    summaries = [line for line in lines if line.startswith("SUMMARY: ") or ": runtime error: " in line]
    return (summaries or [line for line in lines if line.strip()] or [""])[-1].strip()


_LOOP = "look for a loop that does not end, or for a wait"


def _death(status: int) -> tuple[str, str]:
    """Return what ended a process, and what to do."""
    if status == -signal.SIGXCPU:
        return "it used up its processor time", _LOOP
    if status in (-signal.SIGSEGV, -signal.SIGBUS):
        return f"it crashed ({signal.Signals(-status).name})", (
            "look for an access outside an array; `infeng plugins check --sanitize` names the line"
        )
    if status < 0:
        return f"it was killed by {signal.Signals(-status).name}", "run the named case in a debugger"
    return f"its process ended with status {status}", "repair what the text says"
