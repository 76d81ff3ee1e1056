"""Hub names resolve through huggingface_hub's own cache; without a network the error says what to do."""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from infeng_core.formats.hub import is_name

Maker = Callable[..., Path]
COMMIT = "0123456789abcdef0123456789abcdef01234567"
CODE = """
import sys
from infeng_core.errors import InfengError
from infeng_core.formats import load
from infeng_core.plug.manifest import load_config
try:
    print(load(sys.argv[1], load_config(), progress=False).formats_used["embed"])
except InfengError as error:
    print(f"error: {error}")
"""


def run(reference: str, home: Path, *, offline: bool = True, **environment: str) -> str:
    """Load ``reference`` in a process whose hub cache is under ``home``; return what it says."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    env |= {"HF_HOME": str(home), "HF_HUB_OFFLINE": "1" if offline else "0"} | environment
    command = [sys.executable, "-P", "-c", CODE, reference]
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=True, timeout=60)
    return done.stdout.strip()


@pytest.fixture
def home(make_model: Maker, tmp_path: Path) -> Path:
    """A hub cache, laid out as huggingface_hub does, that holds acme/tiny at main and at v2."""
    repo = tmp_path / "home" / "hub" / "models--acme--tiny"
    snapshot = repo / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (repo / "blobs").mkdir()
    for number, file in enumerate(sorted(make_model().iterdir())):
        blob = repo / "blobs" / f"{number:040x}"
        shutil.copy(file, blob)
        (snapshot / file.name).symlink_to(os.path.relpath(blob, snapshot))
    (repo / "refs").mkdir()
    for name in ("main", "v2"):
        (repo / "refs" / name).write_text(COMMIT)
    return tmp_path / "home"


@pytest.mark.parametrize("reference", ["acme/tiny", "acme/tiny@v2", f"acme/tiny@{COMMIT}"])
def test_a_cached_model_loads_offline_by_name_and_revision(home: Path, reference: str) -> None:
    assert run(reference, home) == "int8-row"


@pytest.mark.parametrize("reference", ["acme/other", "acme/tiny@v3"])
def test_offline_a_model_that_is_not_cached_says_what_to_do(home: Path, reference: str) -> None:
    said = run(reference, home)
    expected = "is not in the local hub cache and HF_HUB_OFFLINE is set: unset HF_HUB_OFFLINE to download it"
    assert said.startswith(f"error: {reference}: {expected}")


def test_an_unreachable_hub_says_what_to_do(home: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, not listening: connections are refused
        endpoint = f"http://127.0.0.1:{taken.getsockname()[1]}"
        said = run("acme/other", home, offline=False, HF_ENDPOINT=endpoint, HF_HUB_DOWNLOAD_TIMEOUT="1")
    assert said.startswith("error: acme/other: cannot be downloaded (")
    assert said.endswith("or download it elsewhere (hf download acme/other) and give the directory")


def test_a_local_directory_wins_over_a_hub_name(home: Path, make_model: Maker, tmp_path: Path) -> None:
    make_model(name="acme/tiny")
    env = os.environ | {"HF_HOME": str(home), "HF_HUB_OFFLINE": "1"}
    code = CODE.replace('["embed"]', "").replace(".formats_used", ".source")
    command = [sys.executable, "-P", "-c", code, "acme/tiny"]
    for number in range(2):
        done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=tmp_path, check=True, timeout=60)
        assert "error" not in done.stdout
        if number == 0:
            shutil.rmtree(tmp_path / "home")  # the second time only the local directory is left


@pytest.mark.parametrize(
    ("reference", "is_hub_name"),
    [
        ("meta-llama/Llama-3.2-1B", True),
        ("a/b@refs/pr/1", True),
        ("plain", False),
        ("a/b/c", False),
        ("../b", False),
        ("/a/b", False),
        ("a/b@", False),
        ("a b/c", False),
    ],
)
def test_hub_names_are_recognized(reference: str, is_hub_name: bool) -> None:
    assert is_name(reference) == is_hub_name
