"""An environment of its own for the oracles: torch, transformers, PEFT and more, made at the first use and kept."""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import venv
from pathlib import Path

# Read when tests are collected, before they set a cache of their own: the environment is large.
HOME = Path(os.environ.get("INFENG_CACHE") or Path(__file__).parents[2] / "build") / "peft-env"

# torch first, so that what needs it does not bring another build of it. PEFT's only other need is accelerate.
PACKAGES = (["torch==2.13.0"], ["transformers", "peft", "accelerate", "compressed-tensors"])


def make() -> Path | str:
    """Return its interpreter, or why it cannot be made."""
    named = hashlib.sha256(repr(PACKAGES).encode()).hexdigest()[:8]  # other packages are another environment
    interpreter, ready = HOME / "bin" / "python", HOME / f"ready-{named}"
    HOME.parent.mkdir(parents=True, exist_ok=True)
    with HOME.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests run in several processes
        if not ready.exists():
            venv.create(HOME, with_pip=True, clear=True)
            for packages in PACKAGES:
                command = [interpreter, "-m", "pip", "install", "--quiet", *packages]
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                if done.returncode:
                    return f"cannot install {' '.join(packages)}: {done.stderr.strip().splitlines()[-1]}"
            ready.touch()
    return interpreter


def run(*command: str | Path) -> None:
    """Run a script there; its stderr is the message of what it raises."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
