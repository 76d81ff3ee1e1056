"""The facts about the machine that `infeng doctor` reports. Unreadable ones are left out."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path
from typing import Any

from infeng_core.api.kernels import Cpu, proc


def machine(cpu: Cpu) -> dict[str, Any]:
    """Return processor, cores and NUMA nodes, memory and huge pages."""
    return {
        "system": f"{platform.system()} {platform.release()}",
        "arch": cpu.arch,
        "model": cpu.model,
        "cores": cpu.cores,
        "quota": cpu.quota,
        "caches": dict(cpu.caches),
        "features": sorted(cpu.features),
        "masked": dict(cpu.masked),
        "numa_nodes": len(cpu.topology.nodes) or None,
        "topology": cpu.topology.facts(),
        "memory": memory(),
        "huge_pages": huge_pages(),
    }


def memory() -> dict[str, int]:
    """Return {"total", "available", "limit"} in bytes; ``limit`` only where a control group sets one."""
    result = proc.sizes("/proc/meminfo", total="MemTotal", available="MemAvailable")
    limit = proc.text("/sys/fs/cgroup/memory.max") or proc.text("/sys/fs/cgroup/memory/memory.limit_in_bytes")
    if limit.isdigit() and int(limit) < result.get("total", 1 << 62):
        result["limit"] = int(limit)
    return result


def huge_pages() -> dict[str, Any]:
    """Return {"transparent": "madvise", "defrag": ..., "used_bytes": ...}; the engine needs "madvise" or "always"."""
    folder = "/sys/kernel/mm/transparent_hugepage"
    result: dict[str, Any] = {}
    for name, file in (("transparent", "enabled"), ("defrag", "defrag")):
        match = re.search(r"\[(\w+(?:\+\w+)*)\]", proc.text(f"{folder}/{file}"))
        if match:
            result[name] = match[1]
    return result | proc.sizes("/proc/meminfo", used_bytes="AnonHugePages")


def writable(folder: Path) -> bool:
    """Return whether ``folder`` can be written or created."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return os.access(folder, os.W_OK)
