"""The registry of peers and their environments: built, shown and removed; failures say why and where the log is."""

import json
import os
import select
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from infeng_bench.models import synthetic
from infeng_bench.processes import PeerError
from infeng_peers import environment, exports, known, lineup
from infeng_peers.environment import Environment
from infeng_peers.verbs import peers as verb

from infeng_core.cli import main
from infeng_core.errors import UsageError


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("INFENG_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def wheel(folder: Path, name: str) -> Path:
    """Write a package of one module without dependencies."""
    path = folder / f"{name}-1.0-py3-none-any.whl"
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}.py", "VALUE = 1\n")
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


def small_peer(**more: Any) -> known.Peer:
    """Return a peer that installs without network."""
    facts: dict[str, Any] = {
        "NAME": "small",
        "ABOUT": "for tests",
        "REQUIREMENTS": (),
        "PIP_OPTIONS": ("--no-index",),
        "IMPORTS": (),
        "FORMATS": {"int4-g64": "q4"},
        "OPTIONS": {},
        "build_environment": lambda features, gcc: {"SMALL_FLAGS": "-O9"},
        "MODEL_FILE": "model.bin",
    }
    return known.Peer(**{**facts, **more})


@pytest.mark.parametrize("name", known.NAMES)
def test_every_peer_implements_the_protocol(name: str, tmp_path: Path) -> None:
    peer = known.peer(name)
    assert name == peer.NAME
    assert all("=" in requirement or ">" in requirement for requirement in peer.REQUIREMENTS)  # pinned
    assert set(peer.FORMATS) >= {"int4-g64", "int4-g32", "bf16"}
    assert all(peer.OPTIONS[option] in words for option, words in peer.CHOICES.items())
    for variables in (peer.build_environment({"amx_tile"}, 12), peer.build_environment(set(), None)):
        assert all(isinstance(value, str) for value in variables.values())
    for kind in set(peer.FORMATS.values()):
        commands = peer.export_commands(tmp_path / "bin", tmp_path / "source", tmp_path / "out", kind)
        assert all(command[0] == sys.executable or command[0].startswith(str(tmp_path / "bin")) for command in commands)
        assert not commands or any(str(tmp_path / "out" / peer.MODEL_FILE) in command for command in commands)


def test_the_error_of_an_unknown_peer_suggests_a_known_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "peers", "install", "openvin"]) == 2
    assert "did you mean `openvino`" in capsys.readouterr().err.lower()


@pytest.mark.parametrize(
    ("features", "gcc", "is_careful"),
    [({"amx_tile"}, 12, True), ({"amx_tile"}, 13, False), ({"amx_tile"}, None, False), ({"avx512f"}, 12, False)],
)
def test_the_build_of_llama_cpp_avoids_a_bug_of_old_gcc(features: set[str], gcc: int | None, is_careful: bool) -> None:
    flags = known.peer("llama_cpp").build_environment(features, gcc)["CMAKE_ARGS"]
    assert "-DGGML_NATIVE=ON" in flags
    assert ('"-DCMAKE_CXX_FLAGS=-fno-tree-dse -fno-dse"' in flags) == is_careful


def test_the_compiler_version_is_read_from_the_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "c++"
    monkeypatch.setenv("CXX", str(program))
    for macros, version in (("#define __GNUC__ 12", 12), ("#define __GNUC__ 4\n#define __clang__ 1", None)):
        program.write_text(f"#!/bin/sh\ncat <<'END'\n{macros}\nEND\n")
        program.chmod(0o755)
        assert environment.compiler() == version
    monkeypatch.setenv("CXX", str(tmp_path / "none"))
    with pytest.raises(UsageError, match="install g"):
        environment.compiler()


def test_the_list_of_peers_names_what_is_missing(own_cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    halfway = Environment(known.peer("openvino"))
    halfway.tools.mkdir(parents=True)
    halfway.python.touch()
    whole = Environment(known.peer("transformers"))
    whole.tools.mkdir(parents=True)
    whole.python.touch()
    record = {
        "requirements": list(whole.peer.REQUIREMENTS),
        "versions": {"torch": "2.13.0+cpu", "transformers": "5"},
        "flags": {},
        "python": "3.12",
    }
    (whole.folder / environment.RECORD).write_text(json.dumps(record))
    assert main(["bench", "peers", "list"]) == 0
    shown = capsys.readouterr().out
    assert "llama_cpp          not installed: infeng bench peers install llama_cpp" in shown
    assert "openvino           its installation did not finish" in shown
    assert "transformers       torch 2.13.0+cpu, transformers 5" in shown
    assert main(["bench", "peers", "list", "--json"]) == 0
    listed = {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert listed["llama_cpp"]["missing"] == "not installed"
    assert listed["transformers"]["missing"] == ""
    (whole.folder / environment.RECORD).write_text(
        json.dumps({**record, "requirements": [*whole.peer.REQUIREMENTS, "gguf>=0.17"]})
    )
    assert not whole.missing(), "a package that is no longer needed does no harm"
    record["requirements"] = ["torch==1"]
    (whole.folder / environment.RECORD).write_text(json.dumps(record))
    assert whole.missing() == "its versions are not those that this wheel requires"


def test_remove_deletes_the_environment(capsys: pytest.CaptureFixture[str]) -> None:
    place = Environment(known.peer("openvino"))
    place.tools.mkdir(parents=True)
    place.log.touch()
    assert main(["bench", "peers", "remove", "openvino"]) == 0
    assert not place.folder.exists()
    assert not place.log.exists()
    assert main(["bench", "peers", "remove", "openvino"]) == 0
    assert "openvino: was not installed" in capsys.readouterr().out


@pytest.mark.slow
def test_a_terminal_shows_what_an_installation_does_and_is_left_clean(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Environment(small_peer())
    place.folder.mkdir(parents=True)
    ours, theirs = os.openpty()
    with open(theirs, "w") as terminal, place.log.open("w") as log:  # noqa: PTH123
        monkeypatch.setattr(sys, "stderr", terminal)
        place.execute(["sh", "-c", "printf 'Collecting \\033[31mtorch\\n\\n'; sleep 1.2"], "the installation", log)
    shown = ""
    while select.select([ours], [], [], 5.0)[0] and not shown.endswith("\r\x1b[2K"):  # what was written comes by and by
        shown += os.read(ours, 1 << 16).decode()
    os.close(ours)
    assert "small: the installation, 0:0" in shown and "Collecting" in shown
    assert "\x1b[31m" not in shown and shown.endswith("\r\x1b[2K")


def test_without_a_terminal_an_installation_says_nothing_meanwhile(
    own_cache: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    place = Environment(small_peer())
    place.folder.mkdir(parents=True)
    with place.log.open("w") as log:
        place.execute(["sh", "-c", "echo words; sleep 0.7"], "the installation", log)
    assert capfd.readouterr() == ("", "")


def test_a_failed_program_is_an_error_with_its_last_line(own_cache: Path) -> None:
    place = Environment(small_peer())
    place.folder.mkdir(parents=True)
    script = "echo 'ERROR: no matching distribution'; echo 'a notice'; exit 7"
    with place.log.open("w") as log, pytest.raises(PeerError) as caught:
        place.execute(["sh", "-c", script], "the installation", log)
    assert f"small: the installation failed with status 7: ERROR: no matching distribution: see {place.log}" == str(
        caught.value
    )


def test_an_export_is_made_once_beside_its_source(tiny_config: Path) -> None:
    source = synthetic.hf_directory(tiny_config)

    def commands(tools: Path, source: Path, folder: Path, kind: str) -> list[list[str]]:
        return [["sh", "-c", f"echo {kind} >>{folder}/model.bin"]]

    peer = small_peer(export_commands=commands, FORMATS={"int4-g64": "q4", "int4-p32": "q4"})
    place = Environment(peer)
    place.tools.mkdir(parents=True)
    place.python.touch()
    record = {"requirements": [], "versions": {}, "flags": {}, "python": "3"}
    (place.folder / environment.RECORD).write_text(json.dumps(record))
    first = exports.peer_model(peer, source, "int4-g64")
    assert first.read_text() == "q4\n"
    assert first.parent.parent == source.parent
    assert exports.peer_model(peer, source, "int4-g64") == first
    assert exports.peer_model(peer, source, "int4-p32-a256-h64") == first, "groups and rotations stay ours"
    assert first.read_text() == "q4\n"
    for format in ("int8-row", "somebodys"):
        with pytest.raises(UsageError, match=f"nothing that stands against {format}"):
            exports.peer_model(peer, source, format)


def test_a_peer_that_reads_gguf_gets_a_gguf_unchanged(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.touch()
    assert exports.peer_model(small_peer(READS_GGUF=True), file, "int4-g64") == file
    with pytest.raises(UsageError, match="it reads no GGUF"):
        exports.peer_model(small_peer(READS_GGUF=False), file, "int4-g64")


def test_a_gguf_has_its_own_formats(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.touch()
    named = SimpleNamespace(synthetic=None, model=str(file), format=None)
    assert lineup.source(named) == file  # type: ignore[arg-type]
    named.format = "int4-g64"
    with pytest.raises(UsageError, match=r"model\.gguf has formats of its own"):
        lineup.source(named)  # type: ignore[arg-type]


@pytest.mark.parametrize(("script", "text"), [("exit 1", "failed with status 1"), ("true", "wrote nothing")])
def test_an_export_that_fails_leaves_nothing(tiny_config: Path, script: str, text: str) -> None:
    source = synthetic.hf_directory(tiny_config)
    peer = small_peer(export_commands=lambda tools, source, folder, kind: [["sh", "-c", script]])
    place = Environment(peer)
    place.tools.mkdir(parents=True)
    place.python.touch()
    (place.folder / environment.RECORD).write_text(json.dumps({"requirements": [], "versions": {}}))
    with pytest.raises(PeerError, match=text):
        exports.peer_model(peer, source, "int4-g64")
    assert sorted(path.name for path in source.parent.iterdir()) == sorted([source.name, "peers"])


@pytest.mark.slow
def test_an_environment_is_built_reused_and_rebuilt_by_force(tmp_path: Path) -> None:
    package = wheel(tmp_path, "tinypeer")
    place = Environment(small_peer(REQUIREMENTS=(str(package),), IMPORTS=("tinypeer",)))
    record = place.install()
    assert record["versions"]["tinypeer"] == "1.0"
    assert record["flags"] == {"SMALL_FLAGS": "-O9"}
    assert not place.missing()
    mark = place.folder / "mark"
    mark.touch()
    place.install()
    assert mark.exists()
    place.install(force=True)
    assert not mark.exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("facts", "what"),
    [
        ({"REQUIREMENTS": ("no-such-package==1",)}, "the installation failed with status 1: ERROR: "),
        ({"IMPORTS": ("no_such_module",)}, "the trial import failed with status 1: ModuleNotFoundError"),
    ],
)
def test_an_installation_that_fails_leaves_its_log_and_nothing_else(
    tmp_path: Path, facts: dict[str, Any], what: str
) -> None:
    requirements = (str(wheel(tmp_path, "tinypeer")),)
    place = Environment(small_peer(**{"REQUIREMENTS": requirements, **facts}))
    with pytest.raises(PeerError) as caught:
        place.install()
    assert what in str(caught.value)
    assert f"see {place.log}" in str(caught.value)
    assert place.log.read_text()
    assert not place.folder.exists()


def test_versions_are_shown_under_the_requested_names() -> None:
    record = {"requirements": ["llama-cpp-python==0.3.36", "gguf>=0.17"], "versions": {"llama_cpp_python": "0.3.36"}}
    assert verb._versions(record) == "llama-cpp-python 0.3.36, gguf ?"
