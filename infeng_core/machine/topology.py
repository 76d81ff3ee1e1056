"""Cores, hardware threads and NUMA nodes, from Linux's /sys. What cannot be read is left out."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from infeng_core.machine import proc

SYSTEM = Path("/sys/devices/system")


def topology() -> dict[str, Any]:
    """Return {"online", "allowed", "cores", "sockets", "threads_per_core", "nodes"}.

    online, allowed: hardware threads of the machine, and those that this process may use. cores, sockets: that the
    allowed ones belong to. nodes: [{"node", "cpus", "memory", "free"}] of the whole machine; cpus are counts of
    hardware threads, memory is in bytes.
    """
    allowed = _allowed()
    siblings = [text for cpu in allowed if (text := _text(f"cpu/cpu{cpu}/topology/thread_siblings_list"))]
    sockets = {text for cpu in allowed if (text := _text(f"cpu/cpu{cpu}/topology/physical_package_id"))}
    result: dict[str, Any] = {"allowed": len(allowed)}
    if online := cpu_list(_text("cpu/online")):
        result["online"] = len(online)
    if siblings:
        result["cores"] = len(set(siblings))
        result["threads_per_core"] = max(len(cpu_list(text)) for text in siblings)
    if sockets:
        result["sockets"] = len(sockets)
    return result | {"nodes": nodes()}


def nodes() -> list[dict[str, int]]:
    """Return the NUMA nodes; machines with one kind of memory have one, systems that do not tell have none."""
    result = []
    for folder in sorted((SYSTEM / "node").glob("node[0-9]*"), key=lambda path: int(path.name[4:])):
        node = {"node": int(folder.name[4:]), "cpus": len(cpu_list(_text(f"node/{folder.name}/cpulist")))}
        result.append(node | proc.sizes(folder / "meminfo", memory="MemTotal", free="MemFree"))
    return result


def cpu_list(text: str) -> set[int]:
    """Return the numbers of a list as the kernel writes it: ``0-3,8``."""
    result: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        result.update(range(int(first), int(last or first) + 1))
    return result


def _allowed() -> Sequence[int]:
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)


def _text(name: str) -> str:
    return proc.text(SYSTEM / name)
