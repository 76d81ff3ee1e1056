"""Oracles: other implementations of the same op, which a plugin starts."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from infeng_bench.beside import peers

if TYPE_CHECKING:
    from infeng_bench.kernels.linears import Linear


class OracleOp(Protocol):
    """An op that an oracle holds ready."""

    name: str
    format: str
    calls: int  # op calls of one ``once``
    nbytes: int  # that one call reads

    def once(self, **more: int) -> float:
        """Run it ``calls`` times and return the seconds. more: what its run takes besides."""


class Oracle(Protocol):
    """Another implementation of ops, in a process of its own."""

    @property
    def name(self) -> str:
        """Its name in results."""

    @property
    def introduction(self) -> Mapping[str, Any]:
        """Its first line, with ``version``."""

    def linear(self, linear: Linear, rows: int, copies: int) -> Sequence[OracleOp]:
        """Make x W^T in each of the oracle's number types, with weights of as many bytes in total as ours."""

    def attention(self, **size: int) -> Sequence[OracleOp]:
        """Make causal attention. size: ``sequences, queries, context, heads, kv_heads, head_dim, copies``."""

    def experts(self, kind: str, **size: int) -> OracleOp:
        """Make layers of experts of one number type. size: ``hidden, intermediate, experts, top_k, layers, rows``."""

    def clear(self) -> None:
        """Free all ops."""

    def close(self) -> None:
        """End the process."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``--against`` and ``--oracle-python``."""
    help = "measure in turn with: torch"
    parser.add_argument("--against", action="append", default=[], metavar="ORACLE", help=help)
    parser.add_argument("--oracle-python", metavar="PYTHON", help="interpreter of the environment that has the oracle")


@contextlib.contextmanager
def started(arguments: argparse.Namespace, threads: int) -> Iterator[list[Oracle]]:
    """Start the oracles of ``--against`` and end them after the block."""
    with contextlib.ExitStack() as stack:
        made = (peers().oracle(name, arguments.oracle_python, threads) for name in arguments.against)
        yield [stack.enter_context(contextlib.closing(oracle)) for oracle in made]
