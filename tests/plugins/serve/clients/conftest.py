"""One server for all clients, and environments of their own in which unmodified clients are installed."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest

HERE = Path(__file__).parent
CACHE = Path(__file__).parents[4] / "build" / "clients"
"""Kept from one run to the next: installing takes longer than testing."""
PROMPT = "Question: Tom has 3 boxes. How many boxes has Tom?"

Environment = Callable[..., Path]


class Served(NamedTuple):
    """A server with the demo model, and the answers that HTTP alone gets."""

    url: str
    model: str
    adapter: str
    prompt: str
    grpc: str = ""
    """Where gRPC is served, where its extra is installed."""

    def post(self, path: str, **body: Any) -> Any:
        """Return a route's answer."""
        import httpx

        response = httpx.post(f"{self.url}{path}", json={"model": self.model, **body}, timeout=60)
        assert response.status_code == 200, response.text
        return response.json()

    def get(self, path: str) -> Any:
        """Return what a route says."""
        import httpx

        return httpx.get(f"{self.url}{path}").json()

    def has(self, path: str) -> bool:
        """Return whether there is such a route."""
        import httpx

        return httpx.post(f"{self.url}{path}", json={}).status_code != 404

    def complete(self, model: str | None = None) -> str:
        """Return the greedy completion that every client should get."""
        fields = {"model": model or self.model, "prompt": self.prompt, "max_tokens": 24, "temperature": 0}
        return str(self.post("/v1/completions", **fields)["choices"][0]["text"])

    def chat(self, model: str | None = None) -> str:
        """Return the greedy answer that every client should get."""
        messages = [{"role": "user", "content": self.prompt}]
        fields = {"model": model or self.model, "messages": messages, "max_tokens": 24, "temperature": 0}
        return str(self.post("/v1/chat/completions", **fields)["choices"][0]["message"]["content"])

    def facts(self, *command: object, cwd: Path | None = None, timeout: float = 300) -> dict[str, Any]:
        """Run a client's script with the server's address; return what it prints."""
        words = [str(word) for word in (*command, self.url, self.model, self.adapter, self.prompt)]
        done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, timeout=timeout, env=plain())
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        facts: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return facts


def plain() -> dict[str, str]:
    """Return the environment without what would change another Python or lead a client elsewhere."""
    return {key: value for key, value in os.environ.items() if not key.startswith(("OPENAI_", "PYTHON"))} | {
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
    }


@contextlib.contextmanager
def serving(folder: Path, *options: object) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Serve the demo model in a process of its own; give its address and the process."""
    from infeng_demo import model_dir

    ready, log = folder / "url", folder / "log"
    ready.unlink(missing_ok=True)
    command = [
        sys.executable, "-P", "-c", "import sys; from infeng_core.cli import main; sys.exit(main())",
        "serve", model_dir(), "--ready-file", ready, "--served-model-name", "demo", "-t", "1", *options,
    ]  # fmt: skip
    with log.open("w") as file:
        environment = os.environ | {"INFENG_CACHE": str(folder)}
        process = subprocess.Popen(list(map(str, command)), stdout=file, stderr=file, env=environment)
    try:
        end = time.monotonic() + 120
        while not ready.exists() or not ready.read_text().strip():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.05)
        yield ready.read_text().strip(), process
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Serve the demo model with an adapter."""
    from infeng_demo import adapter_dir

    bard = adapter_dir("shakespeare")
    options = ["--port", 0, "--lora", f"bard={bard}", "--lora-root", bard.parent]
    options += ["--grpc-port", 0] if find_spec("smg_grpc_proto") else []
    folder = tmp_path_factory.mktemp("served")
    with serving(folder, *options) as (url, _):
        grpc = re.search(r"gRPC at (\S+)", (folder / "log").read_text())
        yield Served(url, "demo", "bard", PROMPT, grpc[1] if grpc else "")


@pytest.fixture
def serve(tmp_path: Path) -> Callable[..., contextlib.AbstractContextManager[tuple[str, subprocess.Popen[bytes]]]]:
    """Return what starts a server of the test's own."""
    return functools.partial(serving, tmp_path)


def installed(folder: Path, wanted: str, install: Callable[[], None]) -> None:
    """Make a folder once for all runs and processes; a test is skipped where the registry is not reached."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        made = folder / "made"
        if made.exists() and made.read_text() == wanted:
            return
        try:
            install()
        except subprocess.CalledProcessError as error:
            pytest.skip(f"{wanted} cannot be installed: {(error.stderr or b'')[-300:].decode('utf-8', 'replace')}")
        made.write_text(wanted)


@pytest.fixture(scope="session")
def python_with() -> Environment:
    """Return what gives the interpreter of an environment that has some requirements and nothing else."""

    def make(name: str, *requirements: str) -> Path:
        folder = CACHE / name
        python = folder / "venv" / "bin" / "python"

        def install() -> None:
            shutil.rmtree(folder / "venv", ignore_errors=True)
            subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True, capture_output=True)
            pip = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
            subprocess.run(
                [*pip, "--cache-dir", CACHE / "pip", *requirements], check=True, capture_output=True, env=plain()
            )

        installed(folder, " ".join(requirements), install)
        return python

    return make


@pytest.fixture(scope="session")
def node_with() -> Environment:
    """Return what gives a folder with some npm packages and the scripts of this folder."""

    def make(name: str, *packages: str) -> Path:
        if shutil.which("node") is None or shutil.which("npm") is None:
            pytest.skip("node and npm are not on this machine")
        folder = CACHE / name

        def install() -> None:
            shutil.rmtree(folder / "node_modules", ignore_errors=True)
            (folder / "package.json").write_text('{"private": true, "type": "module"}')
            npm = ["npm", "install", "--no-audit", "--no-fund", "--silent", "--cache", CACHE / "npm"]
            subprocess.run([*npm, *packages], cwd=folder, check=True, capture_output=True)

        installed(folder, " ".join(packages), install)
        for script in HERE.glob("*.mjs"):
            shutil.copy(script, folder / script.name)
        return folder

    return make
