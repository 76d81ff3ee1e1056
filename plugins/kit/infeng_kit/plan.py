"""What is checked: the plugin, where it lies, and what its project says of its parts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from infeng_core.api import Plugins, load_config


@dataclass(frozen=True)
class Plan:
    """The facts that every section of a check needs."""

    plugin: str
    """Its name in plugin.yaml."""
    folder: str
    """A folder for models and files of the check."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The table ``tool.infeng-kit`` of the project's pyproject.toml."""
    model: str | None = None
    """The model whose sizes kernels are checked with."""
    sanitized: bool = False

    @classmethod
    def read(cls, path: Path) -> Plan:
        """Read what ``write`` wrote."""
        return cls(**json.loads(path.read_text(encoding="utf-8")))

    def write(self, path: Path) -> None:
        """Write the plan as JSON."""
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    def settings(self, **more: Any) -> dict[str, Any]:
        """Return settings of an engine that prefers the plugin's kernels; ``more`` as ``section__key``."""
        order = [*_libraries(self.plugin), "reference"]
        named = {name.replace("__", "."): value for name, value in more.items()}
        return {"kernels.order": order, "threads.count": 2, **named}

    def plugins(self, **more: Any) -> Plugins:
        """Return the plugins of such an engine."""
        return Plugins.discover(load_config(overrides=self.settings(**more)))

    def tiny(self) -> Path:
        """Return a tiny model, made once in a check."""
        from infeng_kit.tiny import write

        folder = Path(self.folder) / "tiny"
        return folder if folder.exists() else write(folder)


def model_of(given: str | None) -> str | None:
    """Return a model's path that holds in any working directory, or its name."""
    return str(Path(given).resolve()) if given is not None and Path(given).exists() else given


@cache
def _libraries(plugin: str) -> tuple[str, ...]:
    """Return the name of a plugin if it has kernels: its library has the same name."""
    found = [p.manifest for p in Plugins.discover(load_config()).manifests if p.name == plugin]
    return tuple(m.name for m in found if m is not None and (m.library is not None or m.kernels) and plugin != "core")
