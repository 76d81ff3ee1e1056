"""Machines that exist only as a folder laid out as /sys/devices/system."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from infeng_core.machine.topology import Topology, read

GIB = 1 << 30


class Folder:
    """A machine under construction."""

    def __init__(self, root: Path) -> None:
        """Begin with nothing told."""
        self.root = root

    def write(self, name: str, text: str) -> None:
        """Write one file."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")

    def core(self, cpus: Iterable[int], package: int, l3: str = "") -> None:
        """Add a core of some hardware threads; l3: the list of CPUs that share its last cache."""
        siblings = ",".join(map(str, cpus))
        for cpu in cpus:
            self.write(f"cpu/cpu{cpu}/topology/thread_siblings_list", siblings)
            self.write(f"cpu/cpu{cpu}/topology/physical_package_id", str(package))
            if l3:
                self.write(f"cpu/cpu{cpu}/cache/index0/level", "1")
                self.write(f"cpu/cpu{cpu}/cache/index3/level", "3")
                self.write(f"cpu/cpu{cpu}/cache/index3/shared_cpu_list", l3)

    def node(self, number: int, cpus: str, memory: int) -> None:
        """Add a NUMA node with ``memory`` bytes, half of them free."""
        self.write(f"node/node{number}/cpulist", cpus)
        lines = f"Node {number} MemTotal: {memory >> 10} kB\nNode {number} MemFree: {memory >> 11} kB"
        self.write(f"node/node{number}/meminfo", lines)

    def status(self, nodes: str) -> None:
        """Say on which nodes the process may have memory."""
        self.write("status", f"Name:\tx\nMems_allowed:\t00000003\nMems_allowed_list:\t{nodes}")

    def read(self, allowed: Iterable[int]) -> Topology:
        """Return what the engine makes of it."""
        return read(self.root, allowed, self.root / "status")


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """Return a machine of which nothing is told yet."""
    return Folder(tmp_path)


@pytest.fixture
def laptop(folder: Folder) -> Folder:
    """One node, two cores of two hardware threads: 0 and 2, 1 and 3."""
    folder.write("cpu/online", "0-3")
    for cpu in (0, 1):
        folder.core((cpu, cpu + 2), 0, "0-3")
    folder.node(0, "0-3", 8 * GIB)
    return folder


@pytest.fixture
def server(folder: Folder) -> Folder:
    """Two sockets, each a node of four cores of two hardware threads with two caches of level 3.

    0-3 and 8-11 are on node 0, 4-7 and 12-15 on node 1; CPU n + 8 is the sibling of n.
    """
    folder.write("cpu/online", "0-15")
    for cpu in range(8):
        pair = cpu // 2 * 2
        folder.core((cpu, cpu + 8), cpu // 4, f"{pair}-{pair + 1},{pair + 8}-{pair + 9}")
    folder.node(0, "0-3,8-11", 16 * GIB)
    folder.node(1, "4-7,12-15", 16 * GIB)
    return folder
