"""Facts about the machine that `infeng doctor` reports. What cannot be read is left out."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path
from typing import Any

from infeng_core.machine import topology
from infeng_core.machine.cpu import Cpu


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
        "numa_nodes": len(topology.nodes()) or None,
        "topology": topology.topology(),
        "memory": memory(),
        "huge_pages": huge_pages(),
    }


def memory() -> dict[str, int]:
    """Return {"total", "available", "limit"} in bytes; ``limit`` only where a control group sets one."""
    result = {}
    text = _text("/proc/meminfo")
    for name, key in (("total", "MemTotal"), ("available", "MemAvailable")):
        match = re.search(rf"^{key}:\s+(\d+) kB", text, re.MULTILINE)
        if match:
            result[name] = int(match[1]) * 1024
    limit = _text("/sys/fs/cgroup/memory.max") or _text("/sys/fs/cgroup/memory/memory.limit_in_bytes")
    if limit.isdigit() and int(limit) < result.get("total", 1 << 62):
        result["limit"] = int(limit)
    return result


def huge_pages() -> dict[str, Any]:
    """Return {"transparent": "madvise", "defrag": ..., "used_bytes": ...}; "madvise" and "always" serve the engine."""
    folder = "/sys/kernel/mm/transparent_hugepage"
    result: dict[str, Any] = {}
    for name, file in (("transparent", "enabled"), ("defrag", "defrag")):
        match = re.search(r"\[(\w+(?:\+\w+)*)\]", _text(f"{folder}/{file}"))
        if match:
            result[name] = match[1]
    match = re.search(r"^AnonHugePages:\s+(\d+) kB", _text("/proc/meminfo"), re.MULTILINE)
    if match:
        result["used_bytes"] = int(match[1]) * 1024
    return result


def writable(folder: Path) -> bool:
    """Whether ``folder`` can be written, or made."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return os.access(folder, os.W_OK)


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""
