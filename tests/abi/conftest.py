"""Building kernel libraries outside the checkout, against the installed headers or fabricated ones."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import infeng_abi
import pytest

HERE = Path(__file__).parent
Build = Callable[..., Path]


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Return a function that compiles traveller.c against a folder of headers and returns the library's path."""
    folder = tmp_path_factory.mktemp("abi")
    source = shutil.copy(HERE / "traveller.c", folder)

    def compile_traveller(include: Path, *flags: str) -> Path:
        path = folder / f"libtraveller{len(list(folder.iterdir()))}.so"
        command = [
            "cc",
            "-std=c11",
            "-D_DEFAULT_SOURCE",
            "-Wall",
            "-Wextra",
            "-Wno-type-limits",
            "-Werror",
            "-fPIC",
            "-shared",
            "-O1",
        ]
        subprocess.run([*command, *infeng_abi.CFLAGS, f"-I{include}", *flags, source, "-o", path], check=True)
        return path

    return compile_traveller


@pytest.fixture(scope="session")
def fabricate(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return a function that writes an edited copy of the installed header and returns its include folder."""

    def edited(*edits: tuple[str, str]) -> Path:
        folder = tmp_path_factory.mktemp("include")
        text = (infeng_abi.include_dir() / "infeng" / "abi.h").read_text()
        for old, new in edits:
            assert text.count(old) == 1, f"the header holds {old!r} {text.count(old)} times"
            text = text.replace(old, new)
        (folder / "infeng" / "ops").mkdir(parents=True)
        (folder / "infeng" / "abi.h").write_text(text)
        shutil.copy(infeng_abi.include_dir() / "infeng" / "ops" / "library.h", folder / "infeng" / "ops")
        return folder

    return edited


@pytest.fixture(scope="session")
def tell() -> Callable[[str], str]:
    """Return a function that asks the installed infeng_abi for a fact, as a build system does."""

    def ask(option: str) -> str:
        command = [sys.executable, "-P", "-m", "infeng_abi", option]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    return ask
