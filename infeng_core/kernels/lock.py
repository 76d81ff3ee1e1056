"""manifest.lock: the kernel that serves each problem, and the sha256 of libraries and plugins, so that a change is
noticed. ``infeng_core.plug.pins`` compares the plugins."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from infeng_core.errors import KernelError
from infeng_core.kernels import problems
from infeng_core.plug.pins import AGAIN, LOCK_VERSION, read_lock
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


def write(decisions: Iterable[Mapping[str, Any]], libraries: Mapping[str, str], plugins: Mapping[str, str]) -> str:
    """Return the text of a lock for ``decisions`` (problem fields with "library" and "kernel").

    libraries: the sha256 of each. plugins: the ``identity`` of each.
    """
    kernels: dict[str, set[str]] = {}
    for decision in decisions:
        kernels.setdefault(problems.kind(decision), set()).add(f"{decision['library']}/{decision['kernel']}")
    used = {name.partition("/")[0] for names in kernels.values() for name in names}
    content = {
        "infeng_lock": LOCK_VERSION,
        "plugins": dict(sorted(plugins.items())),
        "libraries": {name: libraries[name] for name in sorted(used)},
        "kernels": {kind: " ".join(sorted(kernels[kind])) for kind in sorted(kernels)},
    }
    return "# Written by `infeng plugins lock`; use it with kernels.lock.\n" + yaml.safe_dump(content, sort_keys=False)
