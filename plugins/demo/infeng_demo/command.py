"""`infeng demo`: streams answers of the base and two adapters from one batch, then prints speeds and kernels."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from infeng_core.api import BASE, Engine, Event, SamplingParams, without_controls
from infeng_demo import adapter_dir, model_dir

KING = "Once upon a time, there was a king who"
REQUESTS: tuple[tuple[str | None, str], ...] = (  # (adapter, prompt)
    (None, "Question: Tom has 3 boxes with 12 apples each. He eats 5 apples. How many apples are left?\nAnswer:"),
    (None, KING),
    ("shakespeare", KING),
    ("python", "# Write a function to find the largest number in a list."),
)
ADAPTERS = tuple(name for name, _ in REQUESTS if name is not None)
PROMPTS = [prompt for _, prompt in REQUESTS]
COLOURS = ("cyan", "cyan", "magenta", "yellow")


class Demo:
    """The command."""

    name = "demo"
    help = "answer four prompts in one batch: the embedded model, and two adapters on it"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's arguments."""
        parser.add_argument("-n", "--max-tokens", type=int, default=96, metavar="N", help="tokens per answer (96)")
        parser.add_argument("--seed", type=int, default=2, metavar="S", help="another seed, other answers (2)")
        parser.add_argument("-t", "--threads", type=int, metavar="T", help="worker threads (default: all)")

    def run(self, arguments: argparse.Namespace) -> int:
        """Run the batch; print answers on stdout, and speeds and kernels on stderr."""
        params = SamplingParams(temperature=0.6, top_p=0.95, seed=arguments.seed, max_tokens=arguments.max_tokens)
        with Engine(model_dir(), threads=arguments.threads) as engine:
            for name in ADAPTERS:
                engine.adapters.load(name, adapter_dir(name), pin=True)
            start = time.perf_counter()
            events = engine.stream(PROMPTS, params, adapters=[name for name, _ in REQUESTS])
            tokens = show_live(events) if sys.stdout.isatty() else show_plain(events)
            seconds = time.perf_counter() - start
            notes = Console(stderr=True)
            if not notes.is_terminal:
                notes.width = 200  # lines of a log are not wrapped
            notes.print(kernel_table(engine))
            for info in engine.adapters.infos():
                seconds_taken = f"loaded in {info.load_seconds or 0:.3f} s"
                notes.print(f"adapter {info.name}: rank {info.rank}, {(info.bytes or 0) / 1e6:.2f} MB, {seconds_taken}")
            notes.print(
                f"{tokens} tokens in {seconds:.2f} s: {tokens / seconds:.0f} tokens/s "
                f"for {len(PROMPTS)} requests in one batch, 2 of them on adapters, prompts included, "
                f"{engine.config.model.format} weights, {engine.config.adapters.dtype} adapters"
            )
        return 0


def show_live(events: Iterable[Event]) -> int:
    """Stream every answer into its own coloured panel; return the number of tokens."""
    answers = [""] * len(PROMPTS)
    tokens = 0
    with Live(panels(answers), console=Console(), refresh_per_second=20) as live:
        for event in events:
            answers[event.index] += without_controls(event.text)
            tokens += len(event.token_ids)
            live.update(panels(answers))
    return tokens


def panels(answers: list[str]) -> Group:
    """Return a panel for each request, titled by its adapter: the prompt (dim) and the answer so far (coloured)."""
    boxes = []
    for (name, prompt), answer, colour in zip(REQUESTS, answers, COLOURS, strict=True):
        text = Text.assemble((prompt, "dim"), (answer, colour))
        boxes.append(Panel(text, title=name or BASE, title_align="left", border_style=colour))
    return Group(*boxes)


def show_plain(events: Iterable[Event]) -> int:
    """Print each complete answer below its adapter's name and its prompt; return the number of tokens."""
    tokens = 0
    for event in events:
        tokens += len(event.token_ids)
        if event.completion is not None:
            name, prompt = REQUESTS[event.index]
            print(
                f"--- {name or 'base'} {'-' * (35 - len(name or 'base'))}\n{prompt}{event.completion.text}", flush=True
            )
    return tokens


def kernel_table(engine: Engine) -> Table:
    """Return a table of the kernel that serves each op, for which batch sizes, and why."""
    table = Table("op", "what", "rows", "kernel", "why", title="kernels bound", title_justify="left", box=SIMPLE_HEAD)
    for op in engine.bound():
        low, high = op.rows
        rows = str(low) if low == high else f"{low}-{high}"
        table.add_row(op.op, op.detail, rows, f"{op.library}/{op.kernel}", op.reason)
    return table
