"""``infeng top URL``: live figures of a server in a terminal."""

from __future__ import annotations

import argparse
import json
import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from infeng_core.api import InfengError, UsageError
from infeng_serve.observability.interval_statistics import Figures, figures
from infeng_serve.observability.scrape import Scrape, fetch, read

WIDE = 1000
"""Columns of output to a file or pipe: wide enough that lines are not wrapped."""


class Top:
    """The command."""

    name = "top"
    help = "watch a server: requests, tokens, latencies, cache, tenants and adapters"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's arguments."""
        parser.add_argument("url", metavar="URL", help="of the server, such as http://localhost:8000")
        parser.add_argument("--api-key", metavar="KEY", help="a key of the server (default: INFENG_API_KEY)")
        parser.add_argument("--interval", type=float, default=2.0, metavar="S", help="seconds between looks (2)")
        parser.add_argument("--once", action="store_true", help="look for one interval, print and end")
        parser.add_argument("--json", action="store_true", help="print one line of JSON for each interval")

    def run(self, arguments: argparse.Namespace) -> int:
        """Watch until ``q`` or Ctrl-C; the exit status is 1 if the first scrape fails."""
        if not 0.1 <= arguments.interval <= 3600:
            raise UsageError(f"--interval {arguments.interval:g}", "it is not from 0.1 to 3600", "such as 2")
        key = arguments.api_key or os.environ.get("INFENG_API_KEY")

        def look() -> Scrape:
            text = fetch(arguments.url, key)
            return read(text, time.monotonic())

        first = look()
        if "num_requests_running" not in first.values:
            raise InfengError(arguments.url, "these are not the metrics of infeng serve", "is it the server's address?")
        if arguments.json:
            _print_json(first, look, arguments.interval, arguments.once)
        else:
            _show(first, look, arguments.interval, arguments.once)
        return 0


def _print_json(before: Scrape, look: Callable[[], Scrape], interval: float, once: bool) -> None:
    while True:
        time.sleep(interval)
        now = look()
        print(json.dumps(figures(now, before).as_dict()), flush=True)
        if once:
            return
        before = now


def _show(before: Scrape, look: Callable[[], Scrape], interval: float, once: bool) -> None:
    from rich.console import Console
    from rich.live import Live

    from infeng_serve.observability.screen import screen

    console = Console()
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = WIDE
    if once or not console.is_terminal:
        while True:
            time.sleep(interval)
            now = look()
            console.print(screen(figures(now, before)))
            if once:
                return
            before = now
    shown: Figures = figures(before, before)
    with Live(screen(shown, hint="q: quit"), console=console, screen=True, auto_refresh=False) as live, _keys() as key:
        while key(interval) not in ("q", "Q"):
            note = ""
            try:
                now = look()
                shown, before = figures(now, before), now
            except InfengError as error:  # the server may be restarting
                note = str(error)
            live.update(screen(shown, note, hint="q: quit"), refresh=True)


@contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """Yield a function that waits some seconds for a key and returns it, "" for none, q without a terminal."""
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    is_terminal = os.isatty(descriptor)

    def key(seconds: float) -> str:
        ready, _, _ = select.select([descriptor] if is_terminal else [], [], [], seconds)
        return (os.read(descriptor, 1) or b"q").decode("latin-1") if ready else ""

    if not is_terminal:
        yield key
        return
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        yield key
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
