"""A project's wheel, and an environment of its own in which it is installed beside the current installation."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
import tomllib
import venv
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infeng_core.api import UsageError

SANITIZERS = "address,undefined"
_SHOWN = 12
"""Last lines of a build that failed."""


@dataclass(frozen=True)
class Project:
    """A folder with a pyproject.toml."""

    folder: Path
    settings: Mapping[str, Any]

    @classmethod
    def read(cls, folder: Path) -> Project:
        """Read the project's settings; raises UsageError without any."""
        path = folder / "pyproject.toml"
        remedy = "name the folder of a plugin; `infeng plugins new` begins one"
        try:
            return cls(folder.resolve(), tomllib.loads(path.read_text(encoding="utf-8")))
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(str(path), f"cannot be read: {getattr(error, 'strerror', error)}", remedy) from None
        except tomllib.TOMLDecodeError as error:
            raise UsageError(str(path), f"is no TOML: {error}", "repair it") from None

    @property
    def options(self) -> Mapping[str, Any]:
        """The table ``tool.infeng-kit``."""
        found = self.settings.get("tool", {}).get("infeng-kit", {})
        return found if isinstance(found, dict) else {}

    def missing_tools(self) -> list[str]:
        """Return what its build requires and this environment lacks."""
        required = self.settings.get("build-system", {}).get("requires", ["setuptools"])
        names = [re.split(r"[^\w.-]", str(one), maxsplit=1)[0] for one in required]
        return [name for name in names if not _is_installed(name)]


@dataclass(frozen=True)
class Environment:
    """A Python with the current installation and one more wheel."""

    python: Path
    environ: Mapping[str, str]


def clean_environ(folder: Path) -> dict[str, str]:
    """Return the environment without the user's settings of the engine, with a cache in ``folder``."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("INFENG_")}
    kept.pop("PYTHONPATH", None)
    tools = [str(Path(sys.executable).parent), *kept.get("PATH", os.defpath).split(os.pathsep)]
    tools.append(str(Path.home() / ".cargo" / "bin"))
    return {**kept, "PATH": os.pathsep.join(tools), "INFENG_CACHE": str(folder / "cache")}


def build(project: Project, folder: Path, *, sanitized: bool) -> tuple[Path | None, str]:
    """Build the wheel into ``folder``; return it and "", or None and the end of what the build said.

    Tools that are installed build it, so that nothing is downloaded; pip fetches them only where some are missing.
    """
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--disable-pip-version-check", "-w", str(folder)]
    if not project.missing_tools():
        command.append("--no-build-isolation")
    environ = clean_environ(folder)
    if sanitized:
        command.append(f"--config-settings=setup-args=-Db_sanitize={SANITIZERS}")
        command.append("--config-settings=setup-args=-Db_lundef=false")
    done = subprocess.run(
        [*command, str(project.folder)],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environ, check=False,
    )  # fmt: skip
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode == 0 and wheels:
        return wheels[0], ""
    return None, "\n".join(_telling(done.stdout))


def environment(wheel: Path, folder: Path) -> Environment:
    """Make an environment that sees the current installation, and install a wheel into it; raises UsageError."""
    place = folder / "environment"
    venv.create(place, with_pip=False, symlinks=True)
    python = place / "bin" / "python"
    [site] = place.glob("lib/python*/site-packages")
    seen = [path for path in sys.path if path and Path(path).is_dir()]
    (site / "current-installation.pth").write_text("\n".join(seen) + "\n")
    try:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site)  # an archive of what it installs, apart from scripts
    except (OSError, zipfile.BadZipFile) as error:
        raise UsageError(wheel.name, f"cannot be unpacked: {error}", "repair its build") from None
    return Environment(python, clean_environ(folder))


def _is_installed(name: str) -> bool:
    try:
        importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _telling(output: str) -> list[str]:
    """Return the lines of a build that name errors, else its last ones."""
    lines = [line.rstrip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"\berror\b|ERROR:", line) and "subprocess-exited" not in line]
    return (errors or lines)[:_SHOWN] if errors else lines[-_SHOWN:]
