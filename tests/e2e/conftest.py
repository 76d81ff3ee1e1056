"""What the end-to-end tests share: real models, the real command line, a cache of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import caches
import pytest
from e2e import harness
from goldens import environment
from goldens.families import QWEN3_MOE
from goldens.shapes import CASES, Case

from infeng_core import Engine
from infeng_core.cli import main

INFENG = str(Path(sys.executable).parent / "infeng")
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder for conversions and probes, shared by these tests."""
    return caches.shared(tmp_path_factory, "command-line")


@pytest.fixture(scope="module", autouse=True)
def _own_cache(cache_folder: Path) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INFENG_CACHE", str(cache_folder))
        yield


@pytest.fixture(scope="session")
def stories() -> Path:
    """Return the directory of stories260K."""
    data = os.environ.get("INFENG_TEST_DATA")
    if not data or not (Path(data) / "stories260k").is_dir():
        pytest.skip("INFENG_TEST_DATA does not name a folder with stories260k/")
    return Path(data) / "stories260k"


@pytest.fixture(scope="session")
def reduced(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the Hugging Face directory of each golden case by its name."""
    root = tmp_path_factory.mktemp("reduced")
    return {case.name: case.write(root / case.name) for case in CASES}


@pytest.fixture(scope="session", params=CASES, ids=lambda case: case.name)
def case(request: pytest.FixtureRequest) -> Case:
    """Return one golden case after the other."""
    return request.param


@pytest.fixture(scope="session")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of a reduced Qwen3-MoE."""
    return QWEN3_MOE.write(tmp_path_factory.mktemp("mixture") / "model")


@pytest.fixture(scope="module")
def mixture_engine(mixture: Path) -> Iterator[Engine]:
    """Return an engine of it in f32, on the fastest library that this processor runs."""
    with harness.engine(mixture, harness.settings(QWEN3_MOE, harness.VECTOR)) as made:
        yield made


@pytest.fixture(scope="session")
def torch_python() -> Path:
    """Return the interpreter of an environment with torch, transformers and PEFT, made at the first use."""
    interpreter = environment.make()
    if isinstance(interpreter, str):
        pytest.skip(interpreter)
    return interpreter


@pytest.fixture
def infeng() -> Run:
    """Return a function that runs ``infeng`` with arguments as a process of its own, without a terminal."""

    def run(*arguments: object, timeout: float = 120, **options: object) -> subprocess.CompletedProcess[str]:
        command = [INFENG, *map(str, arguments)]
        options = {"capture_output": True, "text": True, "stdin": subprocess.DEVNULL} | options
        return subprocess.run(command, timeout=timeout, check=False, **options)  # type: ignore[call-overload, no-any-return]

    return run


@pytest.fixture(params=["called", pytest.param("process", marks=pytest.mark.nightly)])
def command(request: pytest.FixtureRequest, infeng: Run, capfd: pytest.CaptureFixture[str]) -> Run:
    """Return a function like ``infeng``; called in this process, which is fast, and in the nightly tests as a process.

    An exception that leaves the command line fails the test, as a traceback on stderr does.
    """

    def call(*arguments: object) -> subprocess.CompletedProcess[str]:
        argv = [str(argument) for argument in arguments]
        try:
            status = main(argv)
        except SystemExit as stop:  # argparse ends that way
            status = int(stop.code or 0)
        out, err = capfd.readouterr()
        return subprocess.CompletedProcess(argv, status, out, err)

    return call if request.param == "called" else infeng
