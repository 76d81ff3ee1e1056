"""Oracles: other implementations of the same op, each in a process and a Python environment of its own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from infeng_bench.options import TIMEOUT

from infeng_core.api import UsageError, cache_root, unknown_key_remedy
from infeng_peers.environment import Environment
from infeng_peers.known import peer
from infeng_peers.process import EngineProcess

if TYPE_CHECKING:
    from infeng_bench.kernels.linears import Linear

# Oracle -> its program, a file that imports nothing of this project.
SCRIPTS = {"torch": "oracle_torch.py", "kt_kernel": "oracle_kt_kernel.py"}

PEERS = {"torch": "transformers", "kt_kernel": "kt_kernel"}  # oracle -> the peer whose environment has it


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

    def once(self, **more: int) -> float:
        """Run it ``calls`` times and return the seconds. more: what its run takes besides."""
        return float(self.oracle.ask({"run": self.id, **more}, self.name)["seconds"])


class Oracle(EngineProcess):
    """A process with the protocol of its program."""

    when_late = ""

    def __init__(self, name: str, python: str | None, threads: int) -> None:
        """Start the process; raises UsageError or PeerError."""
        program = Path(__file__).parent / SCRIPTS.get(name, "")
        command = [interpreter(name, python), "-P", str(program), "--threads", str(threads)]
        super().__init__(name, command, cache_root() / "bench" / "peers" / f"{name}.log", TIMEOUT)
        self.ready()

    def linear(self, linear: Linear, rows: int, copies: int) -> list[OracleOp]:
        """Make x W^T in each of the oracle's number types, with weights of as many bytes in total as ours."""
        return self._made("linear", n=linear.n, k=linear.k, rows=rows, footprint=copies * linear.nbytes)

    def attention(self, **size: int) -> list[OracleOp]:
        """Make causal attention. size: ``sequences, queries, context, heads, kv_heads, head_dim, copies``."""
        return self._made("attention", **size)

    def experts(self, kind: str, **size: int) -> OracleOp:
        """Make layers of experts of one number type. size: ``hidden, intermediate, experts, top_k, layers, rows``."""
        [made] = self._made("experts", kind, **size)
        return made

    def clear(self) -> None:
        """Free all ops."""
        self.ask({"clear": True}, "clearing")

    def _made(self, op: str, *kinds: str, **size: int) -> list[OracleOp]:
        """Make an op in some number types, or in each of the oracle's; raises UsageError if it has no such op."""
        found = []
        if op not in self.introduction["types"]:
            raise UsageError(self.name, f"it has no {op}", f"it has {', '.join(self.introduction['types'])}")
        for kind in kinds or self.introduction["types"][op]:
            said = self.ask({"make": op, "type": kind, **size}, f"making {op}")
            found.append(OracleOp(self, said["id"], f"{self.name}/{said['name']}", kind, said["calls"], said["nbytes"]))
        return found
