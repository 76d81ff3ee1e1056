"""The wheel `infeng` has no code: it requires the project's other wheels, and pip installs them by its name."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sysconfig
import tomllib
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import parse_wheel_filename

ROOT = Path(__file__).parents[2]
META = ROOT / "plugins" / "infeng"
KERNELS = {"x86_64": {"infeng-amx", "infeng-avx2", "infeng-avx512"}, "aarch64": {"infeng-neon"}}
ALL_KERNELS = set[str]().union(*KERNELS.values())
PLAIN = {
    "infeng-core",
    "infeng-convert",
    "infeng-gguf",
    "infeng-peft",
    "infeng-chat",
    "infeng-doctor",
    "infeng-inspect",
    "infeng-packing",
    "infeng-processors",
    "infeng-profile",
    "infeng-run",
    "infeng-suffix",
    "infeng-tokenizers",
}
NOT_TO_RUN = {"infeng-abi"}  # headers, for building kernels


def project(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    return found


def wheels() -> set[str]:
    """Return the names of the project's other wheels."""
    folders = [ROOT, *(path.parent for path in ROOT.glob("plugins/*/pyproject.toml") if path.parent != META)]
    return {project(folder)["name"] for folder in folders}


def required(extra: str | None = None) -> list[Requirement]:
    mine = project(META)
    listed = mine["dependencies"] if extra is None else mine["optional-dependencies"][extra]
    return list(map(Requirement, listed))


def named(requirements: list[Requirement]) -> set[str]:
    return {one.name for one in requirements if one.name != "infeng"}


def test_it_requires_each_wheel_of_the_project_once() -> None:
    groups = [required(), *(required(extra) for extra in project(META)["optional-dependencies"])]
    names = [name for group in groups for name in sorted(named(group))]
    assert sorted(names) == sorted(wheels() - NOT_TO_RUN)


def test_all_is_all_of_it() -> None:
    [mine] = [one for one in required("all") if one.name == "infeng"]
    assert mine.extras == project(META)["optional-dependencies"].keys() - {"all"}


def test_kernels_are_required_where_they_run() -> None:
    bound = {one.name: one.marker for one in required() if one.marker is not None}
    assert bound.keys() == ALL_KERNELS and named(required()) == ALL_KERNELS | PLAIN
    for machine, names in KERNELS.items():
        assert {name for name, marker in bound.items() if marker.evaluate({"platform_machine": machine})} == names


def test_its_page_says_what_each_extra_requires() -> None:
    rows = [line for line in (META / "README.md").read_text().splitlines() if line.startswith("| `")]
    for extra in (None, *project(META)["optional-dependencies"]):
        [row] = [row for row in rows if (f"infeng[{extra}]" in row if extra else "dist infeng`" in row)]
        assert all(f"`{name}`" in row for name in named(required(extra))), row


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheels that `make setup` built, as `make wheels` tags them."""
    folder = tmp_path_factory.mktemp("dist")
    built = list((ROOT / "build" / "wheels").glob("*/*.whl"))
    if not built:
        pytest.skip("there are no built wheels: make setup")
    tools = {**os.environ, "PATH": f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(["sh", ROOT / ".ci/tag-wheels", folder, *built], capture_output=True, text=True, env=tools)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def python(tmp_path: Path) -> Iterator[Path]:
    """The interpreter of an environment that has what is not the project's of this one, and none of its wheels."""
    venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
    [site] = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if not path.name.startswith(("infeng", "__pycache__")):
            (site / path.name).symlink_to(path)
    yield tmp_path / "venv" / "bin" / "python"
    shutil.rmtree(tmp_path / "venv")


def pip(python: Path, *words: str) -> str:
    done = subprocess.run([python, "-m", "pip", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def installed(python: Path) -> set[str]:
    found = json.loads(pip(python, "list", "--format", "json"))
    return {one["name"] for one in found if one["name"].startswith("infeng")}


@pytest.mark.slow
def test_compiled_wheels_say_on_which_linux_they_run_and_kernels_need_no_python(dist: Path) -> None:
    tags = {parse_wheel_filename(path.name)[0]: parse_wheel_filename(path.name)[3] for path in dist.glob("*.whl")}
    assert tags.keys() >= {"infeng-core", "infeng-convert", *KERNELS.get(platform.machine(), ())}
    for name, found in tags.items():
        platforms = {tag.platform for tag in found}
        assert platforms == {"any"} or all(one.startswith(("manylinux", "musllinux")) for one in platforms), name
        if name in ALL_KERNELS:
            assert {(tag.interpreter, tag.abi) for tag in found} == {("py3", "none")}


@pytest.mark.slow
def test_pip_installs_the_engine_by_its_name_and_a_model_with_an_adapter_runs(python: Path, dist: Path) -> None:
    install = ("install", "--no-index", "--find-links", str(dist))
    pip(python, *install, "infeng")
    here = KERNELS.get(platform.machine(), set())
    assert installed(python) == {"infeng"} | PLAIN | here
    demo = ROOT / "plugins" / "demo" / "infeng_demo"
    words = ["run", demo / "model", "--lora", f"bard={demo / 'adapters' / 'shakespeare'}", "-p", "The king", "-n", "4"]
    done = subprocess.run([python.with_name("infeng"), *map(str, words)], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout, done.stderr
    pip(python, *install, "infeng[all]")
    assert installed(python) == {"infeng"} | ((wheels() | NOT_TO_RUN) - ALL_KERNELS) | here  # the kit needs the headers
    states = json.loads(subprocess.check_output([python.with_name("infeng"), "plugins", "list", "--json"], text=True))
    assert {one["state"] for one in states} <= {"ready", "missing_features"}
