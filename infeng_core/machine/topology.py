"""Hardware threads, cores, caches and NUMA nodes, from Linux's /sys. Unreadable values are left out."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infeng_core.machine import proc

SYSTEM = Path("/sys/devices/system")
STATUS = Path("/proc/self/status")


@dataclass(frozen=True)
class HardwareThread:
    """A CPU by the kernel's number, with its core, cache, node and package."""

    cpu: int
    core: int  # the lowest CPU of its core
    package: int
    node: int
    l3: int  # the lowest CPU that shares its level 3 cache; -1 - package if unknown


@dataclass(frozen=True)
class Node:
    """A NUMA node of the machine; memory in bytes, None if unknown."""

    number: int
    cpus: frozenset[int]
    memory: int | None
    free: int | None
    usable: bool = True  # this process may have memory here


@dataclass(frozen=True)
class Topology:
    """The hardware threads that this process may use, and the nodes of the whole machine."""

    threads: tuple[HardwareThread, ...]  # allowed and online, in the order of their numbers; never empty
    nodes: tuple[Node, ...]
    online: int | None  # hardware threads of the machine
    threads_per_core: int | None  # of the machine's widest core that has an allowed thread

    @property
    def cores(self) -> int:
        """Cores that have an allowed hardware thread."""
        return len({thread.core for thread in self.threads})

    def facts(self) -> dict[str, Any]:
        """Return {"online", "allowed", "cores", "sockets", "threads_per_core", "nodes"}, for `infeng doctor`.

        online, allowed: hardware threads of the machine, and of this process. cores, sockets: of the allowed threads.
        nodes: [{"node", "cpus", "memory", "free"}] of the whole machine; cpus are counts of hardware threads, memory
        is in bytes.
        """
        result: dict[str, Any] = {"allowed": len(self.threads)}
        if self.online is not None:
            result["online"] = self.online
        if self.threads_per_core is not None:
            packages = {thread.package for thread in self.threads}
            result |= {"cores": self.cores, "threads_per_core": self.threads_per_core, "sockets": len(packages)}
        nodes = []
        for node in self.nodes:
            sizes = {"memory": node.memory, "free": node.free}
            known = {name: size for name, size in sizes.items() if size is not None}
            nodes.append({"node": node.number, "cpus": len(node.cpus), **known})
        return result | {"nodes": nodes}


def read(system: Path | None = None, allowed: Iterable[int] | None = None, status: Path | None = None) -> Topology:
    """Return the topology that the folder ``system`` describes, restricted to the CPUs ``allowed``.

    system: default /sys/devices/system. allowed: default the affinity mask of the calling thread. status: the file
    that lists the nodes on which this process may have memory, default /proc/self/status. Offline hardware threads
    are left out. Without information, each hardware thread is a core of its own and all belong to package 0 and node
    0.
    """
    system = system or SYSTEM
    online = cpu_list(proc.text(system / "cpu/online"))
    cpus = sorted(_allowed() if allowed is None else allowed)
    nodes = _nodes(system / "node", _memory_nodes(status or STATUS))
    of_node = {cpu: node.number for node in nodes for cpu in node.cpus}
    threads, widest = [], 0
    for cpu in [cpu for cpu in cpus if cpu in online] or cpus or [0]:
        folder = system / f"cpu/cpu{cpu}"
        siblings = cpu_list(proc.text(folder / "topology/thread_siblings_list"))
        widest = max(widest, len(siblings))
        package = _number(proc.text(folder / "topology/physical_package_id"))
        l3 = _shared_l3(folder / "cache")
        core = min(siblings, default=cpu)
        threads.append(HardwareThread(cpu, core, package, of_node.get(cpu, 0), -1 - package if l3 is None else l3))
    return Topology(tuple(threads), nodes, len(online) or None, widest or None)


def cpu_list(text: str) -> set[int]:
    """Return the numbers of a list in the kernel's form ``0-3,8``; empty for any other text."""
    result: set[int] = set()
    for part in filter(None, text.split(",")):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        if match is None:
            return set()
        result.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return result


def _nodes(folder: Path, usable: set[int] | None) -> tuple[Node, ...]:
    """Return the machine's nodes; () if the system reports none."""
    result = []
    for path in sorted(folder.glob("node[0-9]*"), key=lambda path: int(path.name[4:])):
        number, cpus = int(path.name[4:]), frozenset(cpu_list(proc.text(path / "cpulist")))
        sizes = proc.sizes(path / "meminfo", memory="MemTotal", free="MemFree")
        can = usable is None or number in usable
        result.append(Node(number, cpus, sizes.get("memory"), sizes.get("free"), can))
    return tuple(result)


def _memory_nodes(status: Path) -> set[int] | None:
    """Return the nodes whose memory this process may use; None if unknown."""
    match = re.search(r"^Mems_allowed_list:\s*(\S+)$", proc.text(status), re.MULTILINE)
    return cpu_list(match[1]) if match else None


def _shared_l3(folder: Path) -> int | None:
    """Return the lowest CPU that shares the level 3 cache, None if there is none."""
    for index in sorted(folder.glob("index[0-9]*")):
        if proc.text(index / "level") == "3":
            return min(cpu_list(proc.text(index / "shared_cpu_list")), default=None)
    return None


def _number(text: str) -> int:
    return int(text) if text.isdigit() else 0  # virtual machines say -1


def _allowed() -> Iterable[int]:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
