"""What `make demo` builds: the kernels that this processor runs, and the requirements that the wheels have."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib.metadata import requires
from importlib.util import find_spec
from pathlib import Path

import pytest

from infeng_core.kernels.libraries import libraries
from infeng_core.plug.manager import Plugins

CI = Path(__file__).parents[2] / ".ci"
AVX2 = "fpu avx2 fma f16c"
AVX512 = f"{AVX2} avx512f avx512bw avx512vl avx512dq avx512_vnni"
AMX = f"{AVX512} gfni amx_tile amx_int8"


def kernels(*arguments: object) -> list[str]:
    """Return the plugins that .ci/kernels names."""
    command = ["sh", CI / "kernels", *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()


@pytest.mark.parametrize(
    ("flags", "plugins"),
    [
        ("fpu sse4_2 avx", []),
        (AVX2, ["avx2"]),
        (AVX2.replace("f16c", ""), []),
        (AVX512, ["avx512"]),
        (AVX512.replace("avx512vl", "avx512"), ["avx2"]),  # a whole word, and no part of one
        (AMX, ["amx", "avx512"]),
        (AMX.replace("amx_int8", "amx_bf16"), ["avx512"]),
        ("fp asimd asimdhp asimddp", ["neon"]),
        ("fp asimd asimdhp asimddp sve i8mm", ["neon"]),
        ("fp asimd asimdhp", []),
    ],
)
def test_the_best_plugins_of_a_processor_are_named(flags: str, plugins: list[str], tmp_path: Path) -> None:
    key = "Features" if "asimd" in flags else "flags\t"
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\n{key}\t: {flags}\nbugs\t\t: none\n" * 2)
    assert kernels(tmp_path / "cpuinfo") == plugins


def test_a_processor_without_flags_runs_the_kernels_of_the_core(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nFeatures\t: fp asimd\n")
    assert kernels(tmp_path / "cpuinfo") == kernels(tmp_path / "nothing") == []


def test_this_processor_runs_the_kernels_built_for_it() -> None:
    assert set(kernels()) <= {library.name for library in libraries(Plugins.discover())}


def test_the_listed_requirements_equal_those_of_the_wheels() -> None:
    def listed(table: str) -> set[str]:
        command = [sys.executable, CI / "requirements", table]
        return set(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())

    core = [entry.split(";") for entry in requires("infeng-core") or ()]
    assert {name.strip() for name, *extra in core if not extra} <= listed("dependencies")
    assert {name.strip() for name, *extra in core if extra and "test" in extra[0]} == listed("test")
    assert any(name.startswith("meson-python") for name in listed("build"))
    assert not any(name.startswith("infeng") for name in listed("dependencies"))


@pytest.mark.parametrize(
    ("package", "folder"),
    [
        ("infeng_core", "."),
        ("infeng_bench", "plugins/bench"),
        ("infeng_calibrate", "plugins/calibrate"),
        ("infeng_convert", "plugins/convert"),
        ("infeng_demo", "plugins/demo"),
        ("infeng_dialects", "plugins/dialects"),
        ("infeng_doctor", "plugins/doctor"),
        ("infeng_fair", "plugins/fair"),
        ("infeng_gguf", "plugins/gguf"),
        ("infeng_inspect", "plugins/inspect"),
        ("infeng_nightly", "plugins/nightly"),
        ("infeng_numpy", "plugins/numpy"),
        ("infeng_packing", "plugins/packing"),
        ("infeng_peers", "plugins/peers"),
        ("infeng_peft", "plugins/peft"),
        ("infeng_prefix_store", "plugins/prefix_store"),
        ("infeng_processors", "plugins/processors"),
        ("infeng_profile", "plugins/profile"),
        ("infeng_ray", "plugins/ray"),
        ("infeng_report", "plugins/report"),
        ("infeng_run", "plugins/run"),
        ("infeng_simulate", "plugins/simulate"),
        ("infeng_suffix", "plugins/suffix"),
        ("infeng_tokenizers", "plugins/tokenizers"),
    ],
)
def test_a_wheel_has_every_module_of_its_package(package: str, folder: str) -> None:
    installed = Path(find_spec(package).origin).parent  # type: ignore[union-attr, arg-type]
    tree = CI.parent / folder / package
    assert {path.relative_to(installed) for path in installed.rglob("*.py")} == {
        path.relative_to(tree)
        for path in tree.rglob("*.py")
        if not path.is_relative_to(tree / "native")  # C++
    }


def test_the_demo_installs_what_its_wheels_require() -> None:
    [line] = [line for line in (CI.parent / "Makefile").read_text().splitlines() if line.startswith("demo: ")]
    built = set(re.findall(r"plugin-(\w+)", line)) - {"%"}
    for name in built:
        project = tomllib.loads((CI.parent / "plugins" / name / "pyproject.toml").read_text())["project"]
        required = {re.split(r"[^\w-]", one)[0] for one in project["dependencies"]}
        needed = {one.removeprefix("infeng-").replace("-", "_") for one in required if one.startswith("infeng-")}
        assert needed <= built | {"core", "abi"}, name
