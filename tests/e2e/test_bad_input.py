"""Bad input ends in one clear line on stderr and exit status 1 or 2: no traceback, no half-written file."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from e2e import broken
from e2e.conftest import Run
from workshop import aware

from infeng_core.cli import main

RUN = ("-p", "t5 t6 t7", "-n", "1", "--temperature", "0")


def assert_clear(done: CompletedProcess[str], *said: str, status: tuple[int, ...] = (1, 2)) -> None:
    assert done.returncode in status, done.stderr
    assert "Traceback" not in done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("infeng: error: ")]
    assert len(errors) == 1, done.stderr
    for text in said:
        assert text in errors[0]
    assert done.stdout == ""


@pytest.fixture(scope="module")
def known(reduced: dict[str, Path], cache_folder: Path, _own_cache: None) -> Path:
    """Return a cache with what is found of the kernels."""
    assert main(["run", str(reduced["biased"]), *RUN]) == 0
    return cache_folder


@pytest.fixture
def copy(reduced: dict[str, Path], tmp_path: Path) -> Path:
    """Return a model directory that may be spoiled."""
    return Path(shutil.copytree(reduced["biased"], tmp_path / "model"))


@pytest.mark.parametrize(("spoil", "named"), broken.WAYS, ids=lambda value: getattr(value, "__name__", ""))
def test_an_error_names_a_broken_model_file(
    spoil: Callable[[Path], None],
    named: str,
    copy: Path,
    tmp_path: Path,
    known: Path,
    command: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cache = aware(tmp_path / "cache", known)
    monkeypatch.setenv("INFENG_CACHE", str(cache))
    spoil(copy)
    assert_clear(command("run", copy, *RUN), named, str(copy))
    if named != "tokenizer.json":  # weights alone are sound, and their conversion is kept
        assert [path for path in (cache / "models").rglob("*") if path.is_file() and path.suffix != ".lock"] == []


def test_the_command_shows_no_traceback(copy: Path, infeng: Run) -> None:
    broken.truncated_data(copy)
    assert_clear(infeng("run", copy, *RUN), str(copy))


def test_a_broken_gguf_file_is_refused_with_a_remedy(tmp_path: Path, command: Run) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF" + bytes(64))
    assert_clear(command("run", file, *RUN), "model.gguf", "version 0")


def test_an_error_names_a_missing_folder(tmp_path: Path, command: Run) -> None:
    assert_clear(command("run", tmp_path / "nothing", *RUN), "nothing")


@pytest.mark.slow
def test_an_error_about_a_hub_name_says_how_to_fetch_it(
    infeng: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    assert_clear(infeng("run", "nobody/nothing", *RUN), "nobody/nothing")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--set", "kv_cache.dtyp=f32"), "dtype"),
        (("--set", "kv_cache.dtype=f31"), "f31"),
        (("--set", "kvcache.dtype=f32"), "kv_cache"),
        (("--set", "threads.count=-1"), "threads.count"),
        (("--set", "backend.use=abacus"), "abacus"),
        (("--set", "kernels.force.linear=abacus"), "abacus"),
        (("--set", "kernels.force.linear=reference/abacus"), "abacus"),
        (("--set", "kernels.force.lineal=reference"), "lineal"),
        (("--format", "int3"), "int3"),
        (("--set", "scheduler.use=lottery"), "lottery"),
        (("--set", "tokenizer.use=abacus"), "abacus"),
        (("--set", "kv_cache.memory=1KB"), "kv_cache.memory"),
        (("--set", "kv_cache.memory=1000TB"), "memory"),
        (("--manifest", "nowhere.yaml"), "nowhere.yaml"),
    ],
    ids=lambda value: "=".join(value[1:]) if isinstance(value, tuple) else "",
)
def test_an_error_names_a_wrong_setting(
    arguments: tuple[str, ...], said: str, reduced: dict[str, Path], command: Run
) -> None:
    assert_clear(command("run", reduced["biased"], *RUN, *arguments), said)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("infeng: 1\nkv_cach: {dtype: f32}\n", ":2"),
        ("infeng: 1\nkv_cache:\n  dtype: f17\n", ":3"),
        ("infeng: 9\n", ":1"),
        ("infeng: 1\nkv_cache: [\n", "engine.yaml"),
        ("- 1\n", "engine.yaml"),
        ("", "engine.yaml"),
        ("[" * 50_000, ":1"),
        ("infeng: 1\nmodel: {path: !!timestamp x}\n", ":2"),
        ("infeng: 1\nmodel: " + "x" * 10_000_000, "has more than"),
    ],
)
def test_an_error_names_the_line_of_a_wrong_manifest(
    text: str, said: str, reduced: dict[str, Path], tmp_path: Path, command: Run
) -> None:
    manifest = tmp_path / "engine.yaml"
    manifest.write_text(text)
    assert_clear(command("run", reduced["biased"], *RUN, "--manifest", manifest), "engine.yaml", said, status=(2,))


def test_a_prompt_longer_than_the_context_is_refused(reduced: dict[str, Path], tmp_path: Path, command: Run) -> None:
    prompt = tmp_path / "prompt.txt"
    prompt.write_text("t5 " * 700)
    assert_clear(command("run", reduced["biased"], "-f", prompt, "-n", 1), "640")


@pytest.mark.parametrize(
    "arguments",
    [
        ("-p", "t5", "-n", "0"),
        ("-p", "t5", "-n", "-3"),
        ("-p", "t5", "--temperature", "-1"),
        ("-p", "t5", "--temperature", "nan"),
        ("-p", "t5", "--top-p", "1.5"),
        ("-f", "nowhere.txt"),
    ],
    ids=" ".join,
)
def test_a_wrong_request_is_refused(arguments: tuple[str, ...], reduced: dict[str, Path], command: Run) -> None:
    done = command("run", reduced["biased"], *arguments)
    assert done.returncode in (1, 2)
    assert "Traceback" not in done.stderr
    assert "error: " in done.stderr
    assert done.stdout == ""


def test_an_unknown_command_exits_with_the_status_of_wrong_use(command: Run) -> None:
    done = command("fly")
    assert done.returncode == 2
    assert "fly" in done.stderr
