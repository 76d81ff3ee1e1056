"""The virtual environment of a peer under the user's cache: installation, state and removal."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from infeng_bench.processes import PeerError, clean, last_words
from infeng_convert.api import locked

from infeng_core.api import UsageError, cache_root, get_logger, require_own
from infeng_core.api.kernels import detect
from infeng_peers.known import Peer
from infeng_peers.progress import LOOK_SECONDS, Progress

RECORD = "infeng-peer.json"  # written last: an environment without it is incomplete


@dataclass(frozen=True)
class Environment:
    """The environment of one peer."""

    peer: Peer

    @property
    def folder(self) -> Path:
        """The virtual environment's folder."""
        return cache_root() / "bench" / "peers" / self.peer.NAME

    @property
    def log(self) -> Path:
        """The log of installers, exporters and the peer itself."""
        return self.folder.with_name(f"{self.peer.NAME}.log")

    @property
    def tools(self) -> Path:
        """The folder of its programs."""
        return self.folder / "bin"

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.tools / "python"

    def record(self) -> dict[str, Any] | None:
        """Return the installation's record, {"versions", "flags", "requirements", ...}; None if it is incomplete.

        Raises ResourceError if another user could have written there.
        """
        require_own(self.folder)  # its programs will run
        try:
            data: dict[str, Any] = json.loads((self.folder / RECORD).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return data if self.python.exists() else None

    def missing(self) -> str:
        """Return the reason why the peer cannot run, "" if it can."""
        if not self.folder.exists():
            return "not installed"
        if not self.python.exists():
            return "its interpreter is gone"
        record = self.record()
        if record is None:
            return "its installation did not finish"
        if not set(self.peer.REQUIREMENTS) <= set(record["requirements"]):
            return "its versions are not those that this wheel requires"
        return ""

    def require(self) -> dict[str, Any]:
        """Return the record of a peer that can run; raises PeerError with the command that installs it."""
        if why := self.missing():
            raise PeerError(self.peer.NAME, why, f"run infeng bench peers install {self.peer.NAME}")
        return self.record() or {}

    def install(self, *, force: bool = False) -> dict[str, Any]:
        """Build the environment if it is missing or incomplete; return its record. force: always. Raises PeerError."""
        warn = get_logger(__name__).warning
        with locked(self.folder, waiting=lambda: warn(f"{self.folder}: another process installs it; waiting")):
            if not force and not self.missing():
                return self.require()
            shutil.rmtree(self.folder, ignore_errors=True)
            gcc = compiler() if self.peer.NEEDS_COMPILER else None
            flags = self.peer.build_environment(detect().features, gcc)
            with self.log.open("w", encoding="utf-8") as log:
                try:
                    self._build(flags, log)
                except BaseException:
                    shutil.rmtree(self.folder, ignore_errors=True)
                    raise
        return self.require()

    def remove(self) -> bool:
        """Delete the environment and its log; return whether there was one."""
        with locked(self.folder):
            there = self.folder.is_symlink() or self.folder.exists()
            if self.folder.is_symlink():
                self.folder.unlink()
            elif there:
                shutil.rmtree(self.folder)
            self.log.unlink(missing_ok=True)
        return there

    def execute(
        self, command: Sequence[str], what: str, log: IO[str], environ: Mapping[str, str] | None = None
    ) -> None:
        """Run a program with its output in ``log``; raises PeerError with the log's name and its last line.

        A terminal shows meanwhile what it does.
        """
        log.write(f"$ {' '.join(command)}\n")
        log.flush()
        try:
            status = _watched(command, log, clean(environ or {}), Progress(f"{self.peer.NAME}: {what}", self.log))
        except OSError as error:
            raise PeerError(self.peer.NAME, f"{what}: {command[0]}: {error.strerror}", "install it again") from error
        if status != 0:
            why = f"{what} failed with status {status}: {last_words(self.log)}"
            raise PeerError(self.peer.NAME, why, f"see {self.log}")

    def _build(self, flags: Mapping[str, str], log: IO[str]) -> None:
        pip = [str(self.python), "-m", "pip", "--disable-pip-version-check"]
        install = [*pip, "install", "--progress-bar", "off", *self.peer.PIP_OPTIONS, *self.peer.REQUIREMENTS]
        self.execute([sys.executable, "-m", "venv", str(self.folder)], "making the environment", log)
        self.execute(install, "the installation", log, flags)
        if self.peer.UNWANTED:
            self.execute([*pip, "uninstall", "-y", *self.peer.UNWANTED], "removing what is unwanted", log)
        trial = "; ".join(f"import {name}" for name in self.peer.IMPORTS)
        self.execute([str(self.python), "-P", "-c", trial], "the trial import", log)
        listed = subprocess.run([*pip, "list", "--format", "json"], capture_output=True, check=True, text=True)
        record = {
            "peer": self.peer.NAME,
            "requirements": list(self.peer.REQUIREMENTS),
            "versions": {entry["name"]: entry["version"] for entry in json.loads(listed.stdout)},
            "flags": dict(flags),
            "python": platform.python_version(),
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        (self.folder / RECORD).write_text(json.dumps(record, indent=1), encoding="utf-8")


def _watched(command: Sequence[str], log: IO[str], environ: Mapping[str, str], progress: Progress) -> int:
    """Run a program to its end and return its status; an interrupt ends it too."""
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environ) as process:
        try:
            while True:
                try:
                    return process.wait(LOOK_SECONDS if progress.is_shown else None)
                except subprocess.TimeoutExpired:
                    progress.show()
        except BaseException:
            process.kill()
            raise
        finally:
            progress.close()


def compiler() -> int | None:
    """Return the major version of the C++ compiler if it is GCC, else None; raises UsageError without a compiler."""
    name = os.environ.get("CXX", "c++").split()
    try:
        shown = subprocess.run(
            [*name, "-dM", "-E", "-x", "c++", os.devnull], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError) as error:
        raise UsageError("C++ compiler", f"{' '.join(name)} does not work here", "install g++ or set CXX") from error
    words = (line.split(None, 2) for line in shown.stdout.splitlines() if line.startswith("#define "))
    macros = {entry[1]: entry[2] for entry in words if len(entry) == 3}
    return None if "__clang__" in macros or "__GNUC__" not in macros else int(macros["__GNUC__"])
