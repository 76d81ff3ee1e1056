"""Oracles: other implementations of the same op, each in a process and a Python environment of its own."""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infeng_bench.peers import peer
from infeng_bench.peers.environment import Environment
from infeng_core.api import PluginError, UsageError, unknown_key_remedy

if TYPE_CHECKING:
    from infeng_bench.kernels.linears import Linear

SCRIPTS = {"torch": "oracle_torch.py"}  # oracle -> its program, a file that imports nothing of this project

PEERS = {"torch": "transformers"}  # oracle -> the peer whose environment has it

PAUSE = 0.005  # seconds after a call until an oracle's idle threads sleep


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``--against`` and ``--oracle-python``."""
    help = f"measure in turn with: {', '.join(SCRIPTS)}"
    parser.add_argument("--against", action="append", default=[], metavar="ORACLE", help=help)
    parser.add_argument("--oracle-python", metavar="PYTHON", help="interpreter of the environment that has the oracle")


@contextlib.contextmanager
def started(arguments: argparse.Namespace, threads: int) -> Iterator[list[Oracle]]:
    """Start the oracles of ``--against`` and end them after the block."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(Oracle(name, arguments.oracle_python, threads)) for name in arguments.against]


def interpreter(name: str, given: str | None) -> str:
    """Return the Python interpreter of an oracle; raises UsageError or PeerError with the command that installs it."""
    if name not in SCRIPTS:
        raise UsageError(f"--against {name}", "there is no such oracle", unknown_key_remedy(name, SCRIPTS))
    if given is None:
        environment = Environment(peer(PEERS[name]))
        environment.require()
        return str(environment.python)
    if not Path(given).is_file():
        raise UsageError(
            f"--oracle-python {given}", "it is not there", "give the interpreter of an environment with it"
        )
    return given


@dataclass(eq=False)
class OracleOp:
    """An op that an oracle holds ready."""

    oracle: Oracle
    id: int
    name: str
    format: str
    calls: int
    nbytes: int

    def once(self) -> float:
        """Run it ``calls`` times and return the seconds."""
        seconds = float(self.oracle.ask({"run": self.id})["seconds"])
        time.sleep(PAUSE)
        return seconds


class Oracle:
    """A process that answers each JSON line with another."""

    def __init__(self, name: str, python: str | None, threads: int) -> None:
        """Start the process; raises UsageError or PluginError."""
        self.engine = name
        self._python = interpreter(name, python)
        command = [self._python, "-P", str(Path(__file__).parent / SCRIPTS[name]), "--threads", str(threads)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            said = self._read()
        except BaseException:
            self.close()
            raise
        self.version = str(said.get("version", ""))
        self._types: dict[str, list[str]] = said.get("types", {})

    def linear(self, linear: Linear, rows: int, copies: int) -> list[OracleOp]:
        """Make x W^T in each of the oracle's number types, with weights of as many bytes in total as ours."""
        size = {"n": linear.n, "k": linear.k, "rows": rows, "footprint": copies * linear.nbytes}
        return [self._make("linear", kind, size) for kind in self._types["linear"]]

    def attention(self, **size: int) -> list[OracleOp]:
        """Make causal attention. size: ``sequences, queries, context, heads, kv_heads, head_dim, copies``."""
        return [self._make("attention", kind, size) for kind in self._types["attention"]]

    def clear(self) -> None:
        """Free all ops."""
        self.ask({"clear": True})

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send a line and return the answer; raises PluginError if the process fails."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # if the process has ended, _read raises the error
            print(json.dumps(request), file=self._process.stdin, flush=True)
        return self._read()

    def close(self) -> None:
        """End the process."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Oracle:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _make(self, op: str, kind: str, size: dict[str, int]) -> OracleOp:
        said = self.ask({"make": op, "type": kind, **size})
        return OracleOp(self, said["id"], f"{self.engine}/{said['name']}", kind, said["calls"], said["nbytes"])

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        try:
            said: dict[str, Any] = json.loads(line)
        except ValueError:
            why = "ended without an answer (its output is above)"
            remedy = f"check its environment: {self._python} -c 'import {self.engine}'"
            raise PluginError(f"oracle {self.engine}", why, remedy) from None
        if "error" in said:
            raise PluginError(f"oracle {self.engine}", str(said["error"]), "update its environment")
        return said
