"""The option ``--profile`` of several commands."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from infeng_core.cli import say
from infeng_core.errors import UsageError

if TYPE_CHECKING:
    from infeng_core.engine import Engine

TRACE = "infeng-trace.json"


def add_profile_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--profile [FILE]``."""
    parser.add_argument(
        "--profile",
        nargs="?",
        const=TRACE,
        metavar="FILE",
        help=f"print where the time goes, and write a trace for ui.perfetto.dev to FILE (default: {TRACE})",
    )


@contextmanager
def profiled(engine: Engine, file: str | None) -> Iterator[None]:
    """Measure the body of the ``with`` block; print the table to standard error and write the trace.

    file: None disables it. Raises UsageError, before anything runs, if its folder does not exist.
    """
    if file is None:
        yield
        return
    if not Path(file).absolute().parent.is_dir() or Path(file).is_dir():
        raise UsageError(file, "no file can be written there", "give --profile a file in a folder that exists")
    with engine.profile() as profile:
        yield
    profile.write_trace(file)
    lines = profile.table().splitlines()
    say(*lines, f"trace       {file}, for https://ui.perfetto.dev", to_stderr=True)
