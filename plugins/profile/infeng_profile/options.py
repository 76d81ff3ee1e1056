"""The options ``--profile`` and ``--profile-stacks`` of ``infeng run``."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from infeng_core.api import RunOptions, UsageError, say

TRACE = "infeng-trace.json"


class ProfileOptions(RunOptions):
    """``--profile [FILE]`` and ``--profile-stacks FILE``."""

    def add(self, parser: argparse.ArgumentParser, command: str) -> None:
        """Add the options to ``run``."""
        if command == "run":
            text = f"print where the time goes, and write a trace for ui.perfetto.dev to FILE (default: {TRACE})"
            parser.add_argument("--profile", nargs="?", const=TRACE, metavar="FILE", help=text)
            text = "the same as collapsed stacks, for flamegraph.pl or speedscope.app"
            parser.add_argument("--profile-stacks", metavar="FILE", help=text)

    @contextmanager
    def around(self, arguments: argparse.Namespace, engine: Any) -> Iterator[None]:
        """Measure the body of the ``with`` block; print the table to standard error and write the files.

        Raises UsageError, before anything runs, if the folder of one of them does not exist.
        """
        trace, stacks = arguments.profile, arguments.profile_stacks
        for option, file in (("--profile", trace), ("--profile-stacks", stacks)):
            if file is not None and (not Path(file).absolute().parent.is_dir() or Path(file).is_dir()):
                raise UsageError(file, "no file can be written there", f"give {option} a file in a folder that exists")
        if trace is None and stacks is None:
            yield
            return
        from infeng_profile.measuring import profile

        with profile(engine) as measured:
            yield
        said = measured.table().splitlines()
        if trace is not None:
            measured.write_trace(trace)
            said.append(f"trace       {trace}, for https://ui.perfetto.dev")
        if stacks is not None:
            measured.write_stacks(stacks)
            said.append(f"stacks      {stacks}, for flamegraph.pl or https://speedscope.app")
        say(*said, to_stderr=True)
