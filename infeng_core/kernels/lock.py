"""manifest.lock: the kernel that serves each problem, and the sha256 of libraries and plugins, so that a change is
noticed. ``infeng_core.plug.pins`` compares the plugins."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from infeng_core.errors import KernelError
from infeng_core.kernels import problems
from infeng_core.plug.pins import AGAIN, read_lock
from infeng_core.settings.schema import MapOf, Text


class Lock:
    """The content of a manifest.lock: class of problem -> kernels, and library -> sha256."""

    def __init__(self, path: str, libraries: Mapping[str, str], kernels: Mapping[str, frozenset[str]]) -> None:
        self.path = path
        self.libraries = libraries
        self.kernels = kernels

    @classmethod
    def read(cls, path: str) -> Lock:
        """Read a lock; raises PluginError or KernelError if it is not one, ManifestError if it is not YAML."""
        document = read_lock(Path(path))
        try:
            libraries = MapOf(Text()).check(document.data.get("libraries"))
            bound = MapOf(Text()).check(document.data.get("kernels"))
        except ValueError as error:
            raise KernelError(path, str(error), AGAIN) from None
        return cls(path, libraries, {kind: frozenset(names.split(" ")) for kind, names in bound.items()})

    def require(self, fields: Mapping[str, Any], library: str, kernel: str, sha256: str) -> None:
        """Raise KernelError unless this lock names the same kernel and sha256."""
        kind = problems.kind(fields)
        remedy = "restore what was locked, or write the lock again with `infeng plugins lock`"
        locked = self.kernels.get(kind)
        if locked is None:
            raise KernelError(f"{self.path}: {kind}", "not in the lock", remedy)
        if f"{library}/{kernel}" not in locked:
            why = f"locked to {' or '.join(sorted(locked))}, now {library}/{kernel} would be used"
            raise KernelError(f"{self.path}: {kind}", why, remedy)
        if self.libraries.get(library) != sha256:
            why = f"locked with sha256 {str(self.libraries.get(library))[:16]}, the file now has {sha256[:16]}"
            raise KernelError(f"{self.path}: library {library}", why, remedy)
