"""Where and with what a figure was measured. Nothing here names the computer or its user."""

from __future__ import annotations

import platform
from importlib import metadata
from typing import Any

from infeng_core import api
from infeng_core.api import Cpu, detect


def machine(cpu: Cpu | None = None) -> dict[str, Any]:
    """Return processor, cores, memory in bytes, huge pages and kernel; what cannot be read is left out."""
    facts = api.machine(cpu or detect())
    names = ("arch", "cores", "quota", "caches", "numa_nodes", "system", "huge_pages")
    result = {"cpu": facts["model"], **{name: facts[name] for name in names if facts[name] is not None}}
    result["huge_pages"].pop("used_bytes", None)  # changes from moment to moment
    if "total" in facts["memory"]:
        result["memory_bytes"] = facts["memory"]["total"]
    return result


def features(cpu: Cpu | None = None) -> list[str]:
    """Return the features of the processor that kernels may use here."""
    return sorted((cpu or detect()).features)


def versions() -> dict[str, str]:
    """Return the versions of Python, of what computes and of every installed plugin's distribution."""
    found = {"python": platform.python_version()}
    names = ["infeng-abi", "numpy", "tokenizers"]
    names += [point.dist.name for point in metadata.entry_points(group="infeng.plugins") if point.dist is not None]
    for name in sorted(set(names)):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
