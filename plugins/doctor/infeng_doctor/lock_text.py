"""The text of a manifest.lock, which ``kernels.lock`` names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import yaml

from infeng_core.api.inspection import LOCK_VERSION, problem_kind


def lock_text(decisions: Iterable[Mapping[str, Any]], libraries: Mapping[str, str], plugins: Mapping[str, str]) -> str:
    """Return the text of a lock for ``decisions`` (problem fields with "library" and "kernel").

    libraries: the sha256 of each. plugins: the ``identity`` of each.
    """
    kernels: dict[str, set[str]] = {}
    for decision in decisions:
        kernels.setdefault(problem_kind(decision), set()).add(f"{decision['library']}/{decision['kernel']}")
    used = {name.partition("/")[0] for names in kernels.values() for name in names}
    content = {
        "infeng_lock": LOCK_VERSION,
        "plugins": dict(sorted(plugins.items())),
        "libraries": {name: libraries[name] for name in sorted(used)},
        "kernels": {kind: " ".join(sorted(kernels[kind])) for kind in sorted(kernels)},
    }
    return "# Written by `infeng plugins lock`; use it with kernels.lock.\n" + yaml.safe_dump(content, sort_keys=False)
