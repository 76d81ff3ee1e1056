"""A library that misbehaves at loading loses its plugin, and the engine goes on."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from infeng_inspect import trial

from infeng_core.errors import PluginError
from infeng_core.kernels.libraries import library_states


def plain(path: Path) -> bytes:
    return path.read_bytes()


def for_another_machine(path: Path) -> bytes:
    content = bytearray(path.read_bytes())
    content[18:20] = (22).to_bytes(2, "little")  # e_machine: S/390
    return bytes(content)


def cut_in_half(path: Path) -> bytes:
    content = path.read_bytes()
    return content[: len(content) // 2]


HOSTILE = {
    "an illegal instruction in a constructor": ({"ON_LOAD": "__builtin_trap()"}, plain, "crashed", "SIG(ILL|TRAP)"),
    "abort in a constructor": ({"ON_LOAD": "abort()"}, plain, "crashed", "SIGABRT"),
    "exit in a constructor": ({"ON_LOAD": "_exit(0)"}, plain, "crashed", "status 0"),
    "an endless loop in a constructor": ({"ON_LOAD": "for(;;)"}, plain, "endless", "processor time"),
    "every file closed in a constructor": ({"ON_LOAD": "closefrom(3); sleep(60)"}, plain, "crashed", "SIGKILL"),
    "nonsense in every file": (
        {"ON_LOAD": 'for (int f = 3; f < 4096; ++f) (void)!write(f, "nonsense\\n", 9)'},
        plain,
        "crashed",
        "wrote over",
    ),
    "a crash in the entry point": ({"ON_ENTRY": "raise(SIGSEGV)"}, plain, "crashed", "SIGSEGV"),
    "a C++ exception out of the entry point": ("throws.cc", plain, "crashed", "exception|SIGABRT"),
    "a missing symbol": ({"NO_ENTRY": 1}, plain, "missing_symbol", "infeng_library"),
    "another architecture": ({}, for_another_machine, "not_a_library", "machine"),
    "a truncated file": ({}, cut_in_half, "not_a_library", "truncated"),
    "an empty file": ({}, lambda path: b"", "not_a_library", "not a shared library"),
    "another ABI than its YAML says": ({"MAJOR": 7}, plain, "abi_mismatch", "7"),
    "a build for ABI 0.9": ({"MAJOR": 0, "MINOR": 9}, plain, "abi_mismatch", r"0\.9, this engine|0\.9, this core"),
    "another name than its YAML says": ({"LIBRARY": '"impostor"'}, plain, "invalid", "calls itself impostor"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_the_engine_continues_and_names_the_faulty_library(workshop, monkeypatch, capsys, kind):
    macros, spoil, code, words = HOSTILE[kind]
    monkeypatch.setattr(trial, "CPU_S", 0.7)
    source = {"source": macros} if isinstance(macros, str) else {}
    options = {} if isinstance(macros, str) else macros
    compiled = workshop.compile(**source, **({"LIBRARY": '"culprit"', **options} if not source else {}))
    path = workshop.plugin("culprit", content=spoil(compiled))
    selector = workshop.selector(path)

    assert selector.choose(workshop.embed).library in ("avx512", "avx2", "reference")
    state = next(state for state in selector.states if state.name == "culprit")
    assert state.reason.code == code
    assert re.search(words, str(state.reason)), str(state.reason)
    assert state.native is None
    assert str(path.parent) not in Path("/proc/self/maps").read_text()
    warnings = [line for line in capsys.readouterr().err.splitlines() if "warning" in line]
    assert len(warnings) == 1
    for word in ("culprit", f"code={code}", "remedy="):
        assert word in warnings[0]
    with pytest.raises(PluginError, match="plugin culprit"):
        workshop.selector(path, kernels__strict=True)


@pytest.mark.parametrize(("abi", "said"), [("0.9", "built for 0.11 or later"), ("1.0", "this engine has 0.11")])
def test_a_library_whose_yaml_names_a_refused_abi_is_not_tried(workshop, monkeypatch, abi, said):
    monkeypatch.setattr(trial.Trial, "open", lambda _: pytest.fail("it was tried"))
    plugins = workshop.plugins(workshop.plugin("elder", abi=abi), kernels__order=["elder", "reference"])
    state = next(state for state in library_states(plugins) if state.name == "elder")
    assert state.reason.code == "abi_mismatch"
    assert f"built for ABI {abi}, this engine has" in state.reason.text and said in state.reason.text


@pytest.mark.slow
def test_a_library_that_sleeps_is_given_up_without_a_stored_verdict(workshop, monkeypatch):
    monkeypatch.setattr(trial, "WALL_S", 1.0)
    path = workshop.plugin("sleeper", ON_LOAD="sleep(60)")
    begin = time.monotonic()
    selector = workshop.selector(path)
    assert time.monotonic() - begin < 20
    state = next(state for state in selector.states if state.name == "sleeper")
    assert state.reason.code == "silent"
    assert state.check.verdicts.get("open") is None  # a busy machine may be to blame: tried again next time


def test_a_repaired_file_is_tried_again(workshop):
    path = workshop.plugin("phoenix", ON_LOAD="abort()")
    assert workshop.selector(path).choose(workshop.embed).library != "phoenix"
    path = workshop.plugin("phoenix")
    assert workshop.chosen(workshop.selector(path)) == "phoenix/embed_tiny"


def test_a_known_library_is_not_tried_again(workshop, monkeypatch):
    good, bad = workshop.plugin("first"), workshop.plugin("second", ON_LOAD="abort()")
    workshop.selector(good, bad).choose(workshop.embed)

    def forbidden(*_):
        raise AssertionError("a child process was started")

    monkeypatch.setattr(trial.Trial, "_start", forbidden)
    selector = workshop.selector(good, bad)
    assert workshop.chosen(selector) == "first/embed_tiny"
    assert next(s for s in selector.states if s.name == "second").reason.code == "crashed"


@pytest.mark.parametrize("garbage", [b"", b"{", b"[1, 2]", b"\xff\xfe", b'{"verdicts": 3}', b'{"library": "x"}'])
def test_a_corrupt_cache_is_ignored(workshop, tmp_path, garbage):
    path = workshop.plugin("first", ON_LOAD="abort()")
    workshop.selector(path)
    files = list((tmp_path / "cache" / "verdicts").glob("*.jsonl"))
    assert files
    for file in files:
        file.write_bytes(garbage)
    selector = workshop.selector(path)
    assert next(s for s in selector.states if s.name == "first").reason.code == "crashed"


def test_a_cache_that_cannot_be_written_costs_time_only(workshop, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("INFENG_CACHE", str(tmp_path / "file" / "cache"))
    assert workshop.chosen(workshop.selector(workshop.plugin("first"))) == "first/embed_tiny"


def test_a_missing_library_file_is_named(workshop):
    path = workshop.plugin("first")
    (path.parent / "libfirst.so").unlink()
    selector = workshop.selector(path)
    state = next(s for s in selector.states if s.name == "first")
    assert state.reason.code == "missing_file"
    assert "libfirst.so" in str(state.reason)


def test_a_missing_reference_library_is_an_installation_error(workshop, monkeypatch):
    from infeng_core import builtin
    from infeng_core.plug.hookspecs import KernelLibrary

    monkeypatch.setattr(builtin, "__file__", "/nowhere/builtin.py")
    assert isinstance(builtin.infeng_kernel_libraries()[0], KernelLibrary)
    with pytest.raises(PluginError, match=r"kernel library reference.*reinstall infeng-core"):
        workshop.selector()


def test_the_child_leaves_no_core_file_and_ends_with_its_parent(workshop, tmp_path):
    path = workshop.plugin("first", ON_LOAD="abort()")
    code = (
        "import sys; from infeng_core.plug.assembly import load_config;"
        "from infeng_core.kernels.libraries import library_states;"
        "from infeng_core.plug.manager import Plugins;"
        "p = Plugins.discover(load_config(overrides={'plugins.paths': [sys.argv[1]]}));"
        "print([s.reason.code for s in library_states(p) if s.name == 'first'])"
    )
    environment = {**os.environ, "INFENG_CACHE": str(tmp_path / "other")}
    command = [sys.executable, "-P", "-c", code, str(path)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['crashed']"
    assert not list(tmp_path.glob("core*"))
