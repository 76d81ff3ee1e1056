"""An environment of its own for Ray, which has some 400 MB, beside this one's packages."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

pytest.importorskip("infeng_demo", reason="the demo wheel is not installed")
pytest.importorskip("infeng_ray", reason="the ray wheel is not installed")

CACHE = Path(__file__).parents[3] / "build" / "ray"
"""Kept from one run to the next: installing takes longer than testing."""

REQUIREMENT = "ray[serve]>=2.60"


@pytest.fixture(scope="session")
def ray_python() -> Path:
    """The interpreter of an environment with Ray, and after it what this one has; skips where the registry is away."""
    python = CACHE / "venv" / "bin" / "python"
    CACHE.mkdir(parents=True, exist_ok=True)
    made, wanted = CACHE / "made", f"{REQUIREMENT} for {sys.version}"
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if made.exists() and made.read_text() == wanted:
            return python
        shutil.rmtree(CACHE / "venv", ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", CACHE / "venv"], check=True, capture_output=True)
        [site] = (CACHE / "venv" / "lib").glob("python*/site-packages")
        (site / "outer.pth").write_text(sysconfig.get_path("purelib") + "\n")
        pip = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", REQUIREMENT]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        try:
            subprocess.run(pip, check=True, capture_output=True, env=environment)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"{REQUIREMENT} cannot be installed: {error.stderr[-300:].decode('utf-8', 'replace')}")
        made.write_text(wanted)
    return python
