"""Bodies that are to take a server's time: each is answered, the server lives within its memory, and others are served.

How long the others wait is measured by ``python tests/attacks.py`` (docs/operations.md).
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from attacks import MOST, Victim, attacked, attacks
from infeng_demo import adapter_dir, model_dir
from serve_parts import until

FEW = {
    "prompt of arrays", "64,000 items", "no UTF-8", "gzip of 2 GB", "nested arrays", "4 MB in a message",
    "grammar: ambiguous", "ids to detokenize", "blocks", "calls without results", "texts and ids", "long documents",
}  # fmt: skip
"""Some of each kind: lists, conversations, what is no JSON, what grows, depth, long texts, grammars, dialects."""

MOST_EACH = 12 * MOST
"""Bytes of memory that each call of an attack at a time may take: a dozen of the largest bodies."""

REFUSED = {400, 404, 413, 415, 422, 429, 503}
"""Statuses of calls that are not carried out; 503 where a slow machine would let a second call wait for too long."""


@dataclass
class Served:
    """A server in a process of its own that knows two tenants."""

    process: subprocess.Popen[bytes]
    address: tuple[str, int]

    def peak(self) -> int:
        """Return the most bytes that it has had in memory at a time."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        [line] = [line for line in status.splitlines() if line.startswith("VmHWM")]
        return int(line.split()[1]) * 1024


@pytest.fixture(scope="module")
def attackable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("attacked")
    ready = folder / "ready"
    program = "import sys; from infeng_core.cli import main; sys.exit(main())"
    command = [sys.executable, "-P", "-c", program, "serve", str(model_dir()), "--port", "0", "-t", "1"]
    command += ["--ready-file", str(ready), "--api-key", "victim", "--api-key", "attacker"]
    command += ["--lora", f"bard={adapter_dir('shakespeare')}", "--set", "dialects.rank=cosine"]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        assert until(lambda: ready.exists() or process.poll() is not None, 120), "the server does not start"
        url = httpx.URL(ready.read_text().strip())
        yield Served(process, (url.host, int(url.port or 0)))
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()


def survived(served: Served, chosen: Callable[[str], bool], together: int) -> set[str]:
    """Send attacks, each ``together`` times at once while another tenant asks; return the names of what was sent."""
    most, seen = served.peak() + together * MOST_EACH, set()
    for attack in attacks():
        if not chosen(attack.name):
            continue
        with Victim(served.address, "victim") as victim:
            answers = attacked(served.address, attack, "attacker", together)
        assert answers.total() == together
        assert answers.keys() <= {200, *REFUSED}, f"{attack.name}: {answers}"
        assert victim.statuses.keys() == {200}, f"{attack.name}: {victim.statuses}"
        assert served.process.poll() is None, attack.name
        assert served.peak() <= most, attack.name
        seen.add(attack.name)
    return seen


@pytest.mark.slow
def test_attacks_of_each_kind_are_answered_and_others_are_served(attackable: Served):
    assert survived(attackable, FEW.__contains__, 2) == FEW


@pytest.mark.slow
def test_all_attacks_are_answered_and_others_are_served(attackable: Served):
    assert len(survived(attackable, lambda name: True, 6)) == 79
