"""The cost of a start: modules that are loaded without need."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

MOST_OF_THE_ENGINE = 80
MOST_OF_THE_COMMAND_LINE = 25
"""Modules of ours: these numbers may only fall."""

LATER = ("formats.loader", "formats.converters", "backends.native", "kernels", "plug.manager")
"""What the first engine loads, and the name of the engine does not."""

COUNT = """
import sys
from pathlib import Path
{statement}
watched = ("infeng_convert", "infeng_core", "numpy", "structlog")
print(*sorted(name for name in sys.modules if name.partition(".")[0] in watched))
"""


def loaded_by(statement: str) -> list[str]:
    """Return the modules of ours, and of others that take long, that a statement loads in a new process."""
    words = [sys.executable, "-P", "-c", COUNT.format(statement=statement)]
    out = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    return out.splitlines()[-1].split()


def ours(names: list[str]) -> list[str]:
    return [name for name in names if name.startswith("infeng_core")]


def test_naming_the_engine_loads_no_reader_converter_or_kernel():
    loaded = loaded_by("import infeng_core.engine")
    names = ours(loaded)
    assert not [name for name in loaded if name.startswith("infeng_convert")]
    early = [name for name in names if name.removeprefix("infeng_core.").startswith(LATER)]
    assert not early
    assert not [
        name for name in loaded_by("import infeng_core.engine") if name.startswith(("yaml", "pluggy", "structlog"))
    ]
    assert len(names) <= MOST_OF_THE_ENGINE


def test_the_help_loads_neither_the_engine_nor_numpy():
    statement = "from infeng_core.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass"
    loaded_by(statement)  # keeps what it has read of plugin.yaml files
    names = loaded_by(statement)
    assert not [name for name in names if not name.startswith("infeng_core")]
    assert len(names) <= MOST_OF_THE_COMMAND_LINE


def test_packages_load_nothing_of_their_own():
    for package in ("adapters", "backends", "formats", "formats.adapters", "kernels",
                    "machine", "models", "requests", "scheduling", "settings", "telemetry"):  # fmt: skip
        names = ours(loaded_by(f"import infeng_core.{package}"))
        assert names == sorted({"infeng_core", "infeng_core.version", f"infeng_core.{package}",
                                f"infeng_core.{package.partition('.')[0]}"})  # fmt: skip


def test_the_api_loads_what_is_asked_for_alone():
    modules = ("api", "api.engines", "api.formats", "api.kernels", "api.servers")
    names = loaded_by(f"import {', '.join(f'infeng_core.{module}' for module in modules)}")
    own = {f"infeng_core.{module}" for module in (*modules, "api.lazy", "version")}
    assert set(names) == {"infeng_core", *own}
    assert "infeng_core.errors" in loaded_by("from infeng_core.api import UsageError")


def test_sources_without_their_native_part_say_how_python_finds_the_wheel(tmp_path: Path):
    """In a checkout the folder of the sources comes before the wheels in a script's search path."""
    (tmp_path / "infeng_core").symlink_to(Path(__file__).parents[2] / "infeng_core")
    said = {}
    for name in ("Engine", "Nothing"):
        (tmp_path / "mine.py").write_text(f"from infeng_core import {name}")
        done = subprocess.run([sys.executable, "mine.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
        said[name] = done.stderr.splitlines()[-1]
    assert said["Engine"].endswith("start Python with -P, or in another folder")
    assert "cannot import name 'Nothing'" in said["Nothing"]
