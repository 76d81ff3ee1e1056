"""The features of the processor, and the ones that may be used here."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from infeng_core import _native
from infeng_core.errors import UsageError, unknown_key_remedy
from infeng_core.record import Record, entry

if TYPE_CHECKING:
    from infeng_core.machine.placement import Placement, ThreadSettings
    from infeng_core.machine.topology import Topology

VARIABLE = "INFENG_CPU_FEATURES"

NEEDS: Mapping[str, tuple[str, ...]] = {
    "avx": (),
    "avx2": ("avx",),
    "fma": ("avx",),
    "f16c": ("avx",),
    "bmi2": (),
    "gfni": (),
    "avx_vnni": ("avx2",),
    "avx512f": ("avx2", "fma", "f16c"),
    "avx512bw": ("avx512f",),
    "avx512vl": ("avx512f",),
    "avx512dq": ("avx512f",),
    "avx512cd": ("avx512f",),
    "avx512_vnni": ("avx512f",),
    "avx512_vbmi": ("avx512bw",),
    "avx512_bf16": ("avx512bw",),
    "avx512_fp16": ("avx512bw", "avx512vl", "avx512dq"),
    "amx_tile": (),
    "amx_int8": ("amx_tile",),
    "amx_bf16": ("amx_tile",),
    "neon": (),
    "dotprod": ("neon",),
    "i8mm": ("neon",),
    "sve": ("neon",),
}
"""Each feature and the features that it requires (Intel SDM vol. 1 ch. 14-15, Arm ARM A2): the partial order."""


class Cpu(Record):
    """The processor's features and topology, as kernel selection sees them."""

    arch: str  # "x86_64", "aarch64"
    model: str
    features: frozenset[str]
    masked: Mapping[str, str]  # feature that exists but may not be used -> why
    cores: int  # hardware threads that this process may run on
    quota: float | None = None  # cores' worth of time that the control group allows
    caches: Mapping[str, Any] = entry(default_factory=dict)

    @cached_property
    def topology(self) -> Topology:
        """Sockets, cores and NUMA nodes; read at first use, since few commands need them."""
        from infeng_core.machine.topology import read

        return read()

    def place(self, threads: ThreadSettings, model_bytes: int | None = None) -> Placement:
        """Return the placement of a pool's workers by the section ``threads`` and the bytes of the model's weights."""
        from infeng_core.machine.placement import choose

        return choose(self.topology, self.quota, threads, model_bytes)


def detect(environ: Mapping[str, str] = os.environ) -> Cpu:
    """Return the processor: CPUID features that the operating system enables, without those that
    ``INFENG_CPU_FEATURES`` removes.

    Raises UsageError for a name that is unknown or that is to be added.
    """
    info = _native.cpu_info()
    features = frozenset(info.features)
    masked = dict(info.masked)
    masked |= parse_mask(environ.get(VARIABLE, ""), features)
    return Cpu(
        arch=info.arch,
        model=info.model,
        features=features - masked.keys(),
        masked=MappingProxyType(masked),
        cores=info.cores,
        quota=info.quota,
        caches=MappingProxyType(dict(info.caches)),
    )


def parse_mask(text: str, features: frozenset[str]) -> dict[str, str]:
    """Return the ``features`` that ``text`` removes, each with the reason; dependent features are removed too."""
    removed: list[str] = []
    for word in (part.strip() for part in text.split(",")):
        if not word:
            continue
        name = word.lstrip("+-")
        if name not in NEEDS:
            raise UsageError(f"{VARIABLE}: {word}", "unknown feature", unknown_key_remedy(name, NEEDS))
        if not word.startswith("-"):
            remedy = f"write -{name} to take it away"
            raise UsageError(f"{VARIABLE}: {word}", "features can only be taken away, never added", remedy)
        removed.append(name)
    result: dict[str, str] = {}
    for name in sorted(features):
        causes = closure([name]) & set(removed)
        if name in removed:
            result[name] = f"masked by {VARIABLE}"
        elif causes:
            result[name] = f"masked by {VARIABLE}: needs {', '.join(sorted(causes))}"
    return result


def closure(features: Iterable[str]) -> frozenset[str]:
    """Return ``features`` with everything that they imply."""
    result: set[str] = set()
    pending = list(features)
    while pending:
        name = pending.pop()
        if name not in result:
            result.add(name)
            pending.extend(NEEDS.get(name, ()))
    return frozenset(result)
