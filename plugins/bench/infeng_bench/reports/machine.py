"""The machine and the software of a measurement. Nothing here names the computer or its user."""

from __future__ import annotations

import platform
import re
from importlib import metadata
from typing import TYPE_CHECKING, Any

from infeng_inspect.api import machine as facts_of

from infeng_core.api.kernels import Cpu, detect

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from infeng_core.api.engines import BoundOp
    from infeng_core.api.kernels import Selector


def machine(cpu: Cpu | None = None) -> dict[str, Any]:
    """Return processor, cores, memory in bytes, huge pages and kernel; unreadable facts are left out."""
    facts = facts_of(cpu or detect())
    names = ("arch", "cores", "quota", "caches", "numa_nodes", "system", "huge_pages")
    result = {"cpu": facts["model"], **{name: facts[name] for name in names if facts[name] is not None}}
    result["huge_pages"].pop("used_bytes", None)  # changes from moment to moment
    if "total" in facts["memory"]:
        result["memory_bytes"] = facts["memory"]["total"]
    return result


def features(cpu: Cpu | None = None) -> list[str]:
    """Return the processor features that kernels may use."""
    return sorted((cpu or detect()).features)


def versions() -> dict[str, str]:
    """Return the versions of Python, NumPy, tokenizers, the ABI and every installed plugin's distribution."""
    found = {"python": platform.python_version()}
    names = ["infeng-abi", "numpy", "tokenizers"]
    names += [point.dist.name for point in metadata.entry_points(group="infeng.plugins") if point.dist is not None]
    for name in sorted(set(names)):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def kernel_features(selector: Selector | None, bound: Iterable[BoundOp]) -> dict[str, list[str]]:
    """Return the processor features that each kernel of ``bound``, "library/kernel", may use.

    Kernels of a backend without kernel libraries are left out.
    """
    states = {state.name: state for state in (selector.states if selector else ())}
    found = {}
    for op in bound:
        state = states.get(op.library)
        if state is not None and state.native is not None:
            own = next((kernel.features for kernel in state.native.kernels if kernel.name == op.kernel), [])
            found[f"{op.library}/{op.kernel}"] = sorted(state.features_of(op.kernel, own))
    return found


def linear_features(introduction: Mapping[str, Any], rows: int) -> Collection[str]:
    """Return the features of the kernels bound to linears of integer weights at ``rows`` rows.

    introduction: of an engine, with ``kernels`` and ``details.kernel_features``.
    """
    found: set[str] = set()
    for kernel in introduction["kernels"]:
        low, high = kernel.get("rows", (0, 0))
        if kernel["op"] == "linear" and low <= rows <= high and re.search(r"\bint\d", kernel.get("what", "")):
            found.update(introduction["details"]["kernel_features"].get(kernel["kernel"], ()))
    return found
