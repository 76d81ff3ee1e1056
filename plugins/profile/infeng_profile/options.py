"""The option ``--profile`` of ``infeng run``."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from infeng_core.api import RunOptions, UsageError, say

TRACE = "infeng-trace.json"


class ProfileOptions(RunOptions):
    """``--profile [FILE]``."""

    def add(self, parser: argparse.ArgumentParser, command: str) -> None:
        """Add the option to ``run``."""
        if command == "run":
            text = f"print where the time goes, and write a trace for ui.perfetto.dev to FILE (default: {TRACE})"
            parser.add_argument("--profile", nargs="?", const=TRACE, metavar="FILE", help=text)

    @contextmanager
    def around(self, arguments: argparse.Namespace, engine: Any) -> Iterator[None]:
        """Measure the body of the ``with`` block; print the table to standard error and write the trace.

        Raises UsageError, before anything runs, if the trace's folder does not exist.
        """
        file = arguments.profile
        if file is None:
            yield
            return
        if not Path(file).absolute().parent.is_dir() or Path(file).is_dir():
            raise UsageError(file, "no file can be written there", "give --profile a file in a folder that exists")
        from infeng_profile.measuring import profile

        with profile(engine) as measured:
            yield
        measured.write_trace(file)
        say(*measured.table().splitlines(), f"trace       {file}, for https://ui.perfetto.dev", to_stderr=True)
