"""Plugins are discovered with a separate cache for each test."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from plugin_files import GOOD, HOOKS
from workshop import aware


@pytest.fixture
def cache(tmp_path: Path, known: Path) -> Path:
    """A cache of the test's own."""
    return aware(tmp_path / "cache", known)


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Install a plugin as pip leaves it: a package and its dist-info on the path."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(site)

    def install(name: str, yaml: str = GOOD, hooks: str = HOOKS, init: str = "") -> Path:
        package, info = site / f"infeng_{name}", site / f"infeng_{name}-1.0.dist-info"
        package.mkdir()
        info.mkdir()
        (package / "__init__.py").write_text(init)
        (package / "hooks.py").write_text(hooks.format(name=name))
        path = package / "plugin.yaml"
        path.write_text(yaml.format(name=name))
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: infeng-{name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[infeng.plugins]\n{name} = infeng_{name}:plugin.yaml\n")
        return path

    yield install
    for module in [module for module in sys.modules if module.startswith("infeng_") and str(site) in str(
            getattr(sys.modules[module], "__file__", ""))]:  # fmt: skip
        del sys.modules[module]
