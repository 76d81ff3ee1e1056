"""The example of docs/adding-a-kernel.md builds, is found and exact; a wrong rounding in it would be caught."""

import json
import os
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from infeng_abi import CFLAGS, include_dir
from infeng_kit.cases import cases
from kernels.harness import find_kernel, reference

from infeng_core import _native as native
from infeng_core.kernels.choice import Selector
from infeng_core.kernels.libraries import libraries
from infeng_core.machine.cpu import detect
from infeng_core.plug.assembly import load_config
from infeng_core.plug.manager import Plugins

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "kernel"
PLUGINS = Path(__file__).parents[2] / "plugins"
LIBRARIES = sorted(path.parent.name for path in PLUGINS.glob("*/library.cc"))
REFERENCE = reference()


def compiled(source: Path, folder: Path) -> Path:
    """Compile a source as the page says; return its object."""
    compiler = ["cc", "-std=c11"] if source.suffix == ".c" else ["c++", "-std=c++20"]
    made = folder / f"{source.stem}.o"
    command = [*compiler, "-O2", "-fPIC", f"-I{include_dir()}", *CFLAGS, "-c", str(source), "-o", str(made)]
    subprocess.run(command, check=True)
    return made


@pytest.fixture(scope="module")
def unedited(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return the objects of the example but that of rmsnorm.c."""
    folder = tmp_path_factory.mktemp("objects")
    return [compiled(EXAMPLE / name, folder) for name in ("library.c", "rope.cc")]


def build(folder: Path, unedited: list[Path], edit: tuple[str, str] = ("", "")) -> Path:
    """Make the example's library, after an edit of rmsnorm.c; return the folder with library and YAML."""
    source = (EXAMPLE / "rmsnorm.c").read_text()
    assert edit[0] in source
    (folder / "rmsnorm.c").write_text(source.replace(*edit))
    objects = [*map(str, unedited), str(compiled(folder / "rmsnorm.c", folder))]
    subprocess.run(["cc", "-shared", *objects, "-lm", "-o", str(folder / "libinfeng_example.so")], check=True)
    shutil.copy(EXAMPLE / "infeng_example" / "plugin.yaml", folder)
    return folder


def differing(library: native.Library) -> dict[str, int]:
    """Return how many of the cases that each kernel accepts differ from the reference."""
    found = {}
    for kernel in library.kernels:
        accepted = [case for case in cases(kernel.op) if kernel.accepts(case.problem)]
        assert accepted
        found[kernel.name] = sum(
            case.run(kernel) != case.run(find_kernel(REFERENCE, case.problem)) for case in accepted
        )
    return found


def test_the_example_is_found_chosen_when_forced_and_exact(tmp_path: Path, unedited: list[Path]) -> None:
    folder = build(tmp_path, unedited)
    config = load_config(
        overrides={"plugins.paths": [str(folder / "plugin.yaml")], "kernels.force": {"rmsnorm": "example/rmsnorm_c"}},
        environ={**os.environ, "INFENG_CACHE": str(tmp_path / "cache")},
    )
    plugins = Plugins.discover(config)
    library = next(library for library in libraries(plugins) if library.name == "example")
    assert differing(library) == {"rmsnorm_c": 0, "rope_cc": 0}
    chosen = Selector(plugins, config, detect()).choose(native.Problem("rmsnorm", rows=(1, 8), n=64, k=64))
    assert (chosen.library, chosen.name) == ("example", "rmsnorm_c")


def test_a_product_that_is_rounded_before_it_is_added_is_caught(tmp_path: Path, unedited: list[Path]) -> None:
    folder = build(tmp_path, unedited, ("fmaf(x[i], x[i], lanes[i % 16])", "x[i] * x[i] + lanes[i % 16]"))
    found = differing(native.open_library(str(folder / "libinfeng_example.so")))
    assert found["rmsnorm_c"] > 0
    assert found["rope_cc"] == 0


def test_the_required_flags_are_enforced(tmp_path: Path) -> None:
    command = ["cc", "-ffast-math", f"-I{include_dir()}", "-c", str(EXAMPLE / "library.c"), "-o", str(tmp_path / "x.o")]
    refused = subprocess.run(command, capture_output=True, text=True)
    assert refused.returncode != 0
    assert "equal bytes" in refused.stderr


@pytest.mark.parametrize("name", LIBRARIES)
def test_kernel_wheels_fit_every_python_and_depend_on_the_core(name: str) -> None:
    """meson-python would tag them with the Python that built them."""
    project = tomllib.loads((PLUGINS / name / "pyproject.toml").read_text())
    assert project["build-system"]["build-backend"] == "infeng_abi.build"
    try:
        installed = distribution(f"infeng-{name}")
    except PackageNotFoundError:
        pytest.skip(f"infeng-{name} is not installed")
    assert "Tag: py3-none-linux_" in (installed.read_text("WHEEL") or "")
    assert any(required.startswith("infeng-core") for required in installed.requires or ())


@pytest.mark.slow
def test_the_example_wheel_installs_and_announces_itself(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    shutil.copytree(EXAMPLE, source)
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--target",
        str(target),
    ]
    tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # meson and ninja of the same environment
    subprocess.run([*pip, str(source)], check=True, env={**os.environ, "PATH": tools})
    [info] = target.glob("infeng_example-*.dist-info")
    assert "Tag: py3-none-linux_" in (info / "WHEEL").read_text()  # no Python is in it: one wheel for all
    assert "Requires-Dist: infeng-core" in (info / "METADATA").read_text()
    script = (
        "import json; from infeng_core.plug.manager import Plugins;"
        "from infeng_core.kernels.libraries import libraries;"
        "from infeng_core.plug.assembly import load_config;"
        "plugins = Plugins.discover(load_config(overrides={'kernels.order': ['example', 'reference']}));"
        "print(json.dumps([k.name for l in libraries(plugins) if l.name == 'example' for k in l.kernels]))"
    )
    environment = {**os.environ, "PYTHONPATH": str(target), "INFENG_CACHE": str(tmp_path / "cache")}
    shown = subprocess.run(
        [sys.executable, "-P", "-c", script], check=True, capture_output=True, text=True, env=environment, cwd=tmp_path
    )
    assert json.loads(shown.stdout) == ["rmsnorm_c", "rope_cc"]
