"""CONTRIBUTING says what `make lint` does."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_mypy_checks_every_package_that_ships_its_types():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["mypy"]
    shipped = [path for where in ("", "abi/", "plugins/*/") for path in ROOT.glob(f"{where}infeng_*/py.typed")]
    assert len(shipped) > 1
    assert settings["strict"] is True
    assert sorted(settings["packages"]) == sorted(path.parent.name for path in shipped)
    in_tree = {str(path.parents[1].relative_to(ROOT)) for path in shipped} - {"."}
    assert set(settings["mypy_path"]) == in_tree, "the tree is checked, not what is installed"
