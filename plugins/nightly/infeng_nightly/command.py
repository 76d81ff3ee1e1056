"""`infeng nightly` measures, remembers and judges; `infeng dashboard` draws what is remembered."""

from __future__ import annotations

import argparse

from infeng_core.api import UsageError, say


class Nightly:
    """The command that measures."""

    name = "nightly"
    help = "measure speed and quality, add them to a history, and name what became worse"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments."""
        parser.add_argument("--history", required=True, metavar="F", help="JSON lines, a run each; made if not there")
        parser.add_argument("--quick", action="store_true", help="the demo model and small sizes, a minute or two")
        help = "a model, or a shape of infeng bench (default: the demo model, and tinyllama-1.1b unless --quick)"
        parser.add_argument("--model", nargs="+", action="extend", metavar="MODEL", help=help)
        parser.add_argument("--texts", action="append", default=[], metavar="FILE", help="texts for quality; repeats")
        parser.add_argument(
            "--engines", metavar="A,B", help="other engines beside: infeng,llama_cpp,... once installed"
        )
        help = "readings of each figure (default: 7, 5 with --quick)"
        parser.add_argument("--rounds", type=_positive, metavar="N", help=help)
        parser.add_argument("--format", metavar="F", help="weight format, such as int4-g64")
        parser.add_argument(
            "-t", "--threads", type=_positive, metavar="N", help="worker threads (default: usable cores)"
        )
        help = "a setting of the engine; repeats"
        parser.add_argument("--set", action="append", default=[], dest="assignments", metavar="KEY=VALUE", help=help)
        parser.add_argument("--commit", metavar="ID", help="what is measured (default: the commit of this folder)")

    def run(self, arguments: argparse.Namespace) -> int:
        """Measure, judge, remember and print; return 1 if a figure is worse or a measurement failed."""
        from infeng_nightly import night

        return night.run(arguments)


class Dashboard:
    """The command that draws."""

    name = "dashboard"
    help = "draw a history of infeng nightly as one page"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments."""
        parser.add_argument("history", metavar="F", help="what infeng nightly --history wrote")
        parser.add_argument(
            "-o", "--output", default="dashboard.html", metavar="PAGE", help="dashboard.html, or another"
        )

    def run(self, arguments: argparse.Namespace) -> int:
        """Read, draw and write. Raises UsageError for a file without runs."""
        from infeng_bench.reports.results import require_places, write_text

        from infeng_nightly import dashboard, history

        require_places(arguments)
        runs = history.read(arguments.history)
        if not any(run.figures for run in runs):
            raise UsageError(arguments.history, "there is no run in it", history.WRITTEN)
        write_text(arguments.output, dashboard.page(runs))
        say(f"{arguments.output}: {len(runs)} run{'s' * (len(runs) != 1)}")
        return 0


def _positive(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text) <= 1000):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to 1000")
    return int(text)
