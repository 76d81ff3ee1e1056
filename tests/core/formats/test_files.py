"""Reading a small file of any kind is quick, and ends in its contents or in the caller's error class."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from infeng_core import yamltree
from infeng_core.errors import AdapterError, ManifestError, ModelError, ResourceError
from infeng_core.files import (
    model_file,
    opened,
    own_file,
    parse_json,
    read_bytes,
    read_into,
    read_json,
    read_own,
    read_text,
    require_trusted,
)
from infeng_core.plug.assembly import load_config
from infeng_core.plug.plugin import read_plugin
from infeng_core.settings import yamlfile


def sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)


STRANGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "absent": (lambda path: None, "no such file"),
    "directory": (Path.mkdir, "no regular file"),
    "pipe": (os.mkfifo, "no regular file"),
    "device": (lambda path: path.symlink_to("/dev/zero"), "no regular file"),
    "sparse terabyte": (sparse, "has more than 1000 bytes"),
    "one byte too many": (lambda path: path.write_bytes(b"x" * 1001), "has more than 1000 bytes"),
    "loop": (lambda path: path.symlink_to(path.name), "cannot be read"),
}


@pytest.mark.parametrize("name", STRANGE)
@pytest.mark.parametrize("kind", [ModelError, AdapterError, ManifestError])
def test_a_strange_file_is_an_error_of_the_callers_class(name: str, kind: type[ModelError], tmp_path: Path) -> None:
    make, why = STRANGE[name]
    path = tmp_path / "config.json"
    make(path)
    with pytest.raises(kind, match=why) as caught:
        read_bytes(path, 1000, kind, "do this")
    assert type(caught.value) is kind and caught.value.what == str(path) and caught.value.remedy


@pytest.mark.parametrize("name", ["nul\0", "half \ud800", "x" * 5000])
def test_a_name_that_no_file_can_have_is_an_error(name: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError) as caught:
        read_bytes(tmp_path / name)
    str(caught.value).encode()


def test_a_file_of_the_limit_is_read_and_one_without_a_size_too(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"x" * 1000)
    assert read_bytes(tmp_path / "x", 1000) == b"x" * 1000
    assert read_text(Path("/proc/self/comm"))
    (tmp_path / "x").write_bytes(b"ab\xff")
    with pytest.raises(ModelError, match=r"not UTF-8 text \(byte 2\)"):
        read_text(tmp_path / "x")


def test_a_file_that_was_cut_after_it_was_opened_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(bytes(100))
    with opened(path) as handle:
        os.truncate(path, 60)
        with pytest.raises(ModelError, match="ends 20 bytes too early"):
            read_into(handle, memoryview(bytearray(70)), 10, path)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"[" * 65 + b"]" * 65, "nested too deeply"),
        (b"[" * 5_000_000, "nested too deeply"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (b'["' + b'\\"' * 2_000_000, "Unterminated string"),
        (b'["\\ud800"]', "half of a surrogate pair"),
        (b'["\xed\xa0\x80"]', "not UTF-8"),
        (b'{"a": 1, "a": 2}', "given twice"),
        (b"[NaN]", "not a JSON number"),
        (b"9" * 10_000, "limit"),
        (b'"a\0b"', "control character"),
    ],
    ids=range(10),
)
def test_invalid_json_is_a_value_error_at_once(data: bytes, why: str) -> None:
    start = time.monotonic()
    with pytest.raises(ValueError, match=why):
        parse_json(data)
    assert time.monotonic() - start < 20  # 5 MB; a quadratic scan takes hours


def test_brackets_in_texts_are_no_nesting_and_surrogate_pairs_are_no_error(tmp_path: Path) -> None:
    assert parse_json(b'["' + b"[{" * 100 + b'\\"", "\\ud83d\\ude00"]') == ["[{" * 100 + '"', "\N{GRINNING FACE}"]
    assert parse_json(b"[" * 64 + b"]" * 64)
    (tmp_path / "x").write_bytes(b"[")
    with pytest.raises(AdapterError, match="not valid JSON"):
        read_json(tmp_path / "x", "save it again", 10, AdapterError)


BAD_YAML = [
    ("[" * 50_000, 1, "too deeply nested"),
    ("{a: " * 50_000, 1, "too deeply nested"),
    ("- " * 50_000, 1, "too deeply nested"),
    ("? " * 50_000, 1, "a key must be a plain word"),
    ("infeng: 1\na: !!timestamp nonsense\n", 2, "not what its tag says"),
    ("infeng: 1\na: !!bool nonsense\n", 2, "not what its tag says"),
    ("infeng: 1\na: !!int nonsense\n", 2, "not what its tag says"),
    ("infeng: 1\na: !!int ''\n", 2, "not what its tag says"),
    ("infeng: 1\na: !!float x\n", 2, "not what its tag says"),
    ("infeng: 1\na: 2001-99-99\n", 2, "not what its tag says"),
    ("infeng: 1\na: " + "9" * 10_000, 2, "not what its tag says"),
    ("infeng: 1\na: " + ":".join(["1"] * 100_000), 2, "not what its tag says"),
    ("infeng: 1\na: !!set {x}\n", 2, "is not known"),
    ("infeng: 1\na: !!python/object:os.system x\n", 2, "could not determine a constructor"),
    ("infeng: 1\na: &b 1\n", 2, "anchors"),
    ("infeng: 1\na: *b\n", 2, "anchors"),
    ("infeng: 1\na: [" + "1," * 30_000 + "]", 2, "too many"),
    ("infeng: 1\n---\ninfeng: 1\n", 2, "second document"),
]


@pytest.mark.parametrize(("text", "line", "why"), BAD_YAML, ids=range(len(BAD_YAML)))
def test_invalid_yaml_is_an_error_with_its_line(text: str, line: int, why: str, tmp_path: Path) -> None:
    for path, read in ((tmp_path / "engine.yaml", load_config), (tmp_path / "plugin.yaml", read_plugin)):
        path.write_text(text)
        with pytest.raises(ManifestError, match=why) as caught:
            read(path)
        assert caught.value.what.startswith(f"{path}:{line}")
        assert len(str(caught.value)) < 1000


def test_pyyamls_own_parser_gives_the_same_data_and_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import yaml

    text = "a: [1, {b: null, c: 'x'}]\nd: 1.5e-3\ne: !!str 7\nf: |\n  two\n  lines\n"
    first = yamltree.parse(text, tmp_path, ManifestError)
    assert first[0] == yaml.safe_load(text) and first[1]["f",] == 4
    monkeypatch.setattr(yamltree, "_Loader", yaml.SafeLoader)
    assert yamltree.parse(text, tmp_path, ManifestError) == first
    for text, line, why in BAD_YAML:
        with pytest.raises(ManifestError, match=why) as caught:
            yamltree.parse(text, tmp_path, ManifestError)
        assert caught.value.what.startswith(f"{tmp_path}:{line}")


@pytest.mark.parametrize("name", ["pipe", "device", "sparse terabyte", "directory"])
def test_a_manifest_is_a_regular_file(name: str, tmp_path: Path) -> None:
    STRANGE[name][0](tmp_path / "engine.yaml")
    with pytest.raises(ManifestError):
        yamlfile.read(tmp_path / "engine.yaml")


def test_the_command_line_survives_a_bottomless_manifest(tmp_path: Path) -> None:
    (tmp_path / "engine.yaml").write_text("[" * 50_000)
    code = "import sys; from infeng_core.cli import main; sys.exit(main())"
    command = [sys.executable, "-P", "-c", code, "doctor", "--manifest", str(tmp_path / "engine.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2 and "engine.yaml:1: too many or too deeply nested" in done.stderr


# ------------------------------------------------------------------------------------------------- whose a file is ---

STRANGER = 12345
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")


def linked(path: Path) -> None:
    path.with_name("target").write_text("{}")
    path.symlink_to("target")


def writable(path: Path) -> None:
    path.write_text("{}")
    path.chmod(0o666)


def in_an_open_folder(path: Path) -> None:
    path.write_text("{}")
    path.parent.chmod(0o777)


def in_a_folder_of_a_stranger(path: Path) -> None:
    path.write_text("{}")
    os.chown(path.parent, STRANGER, STRANGER)


def of_a_stranger(path: Path) -> None:
    path.write_text("{}")
    os.chown(path, STRANGER, STRANGER)


NOT_OURS: list[object] = [
    linked,
    writable,
    in_an_open_folder,
    *(pytest.param(make, marks=as_root) for make in (in_a_folder_of_a_stranger, of_a_stranger)),
]


@pytest.mark.parametrize("make", NOT_OURS)
def test_files_that_another_user_could_have_written_are_not_trusted(
    make: Callable[[Path], None], tmp_path: Path
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    make(folder / "state")
    with pytest.raises(ResourceError) as caught:
        read_own(folder / "state")
    assert str(folder) in caught.value.what and caught.value.remedy


@pytest.mark.parametrize("name", STRANGE)
def test_irregular_files_are_neither_trusted_nor_written(name: str, tmp_path: Path) -> None:
    make, _ = STRANGE[name]
    make(tmp_path / "state")
    with pytest.raises(ResourceError):
        read_own(tmp_path / "state", 1000)
    if name in ("directory", "pipe", "device", "loop"):
        with pytest.raises(ResourceError), own_file(tmp_path / "state", flags=os.O_WRONLY | os.O_CREAT):
            pass


def test_own_files_are_read_in_sticky_folders_and_through_own_links(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    folder.chmod(0o1777)
    (folder / "state").write_text("{}")
    (tmp_path / "link").symlink_to(folder)
    assert read_own(folder / "state") == read_own(tmp_path / "link" / "state") == b"{}"
    require_trusted(tmp_path / "nothing")


@as_root
def test_another_users_link_to_an_own_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "state").write_text("{}")
    (tmp_path / "link").symlink_to("folder")
    os.chown(tmp_path / "link", STRANGER, STRANGER, follow_symlinks=False)
    with pytest.raises(ResourceError, match="another user"):
        read_own(tmp_path / "link" / "state")


def snapshot(root: Path) -> Path:
    """Return a model's folder as the hub's cache has it: links to the blobs of the repository."""
    folder = root / "models--org--name" / "snapshots" / ("0" * 40)
    (folder / "additional_chat_templates").mkdir(parents=True)
    blobs = folder.parent.parent / "blobs"
    blobs.mkdir()
    (blobs / "1234").write_text("{}")
    (folder / "config.json").symlink_to("../../blobs/1234")
    (folder / "additional_chat_templates" / "x.jinja").symlink_to("../../../blobs/1234")
    return folder


def test_links_into_the_blobs_of_the_hub_s_cache_are_followed_and_no_others(tmp_path: Path) -> None:
    folder = snapshot(tmp_path)
    for name in ("config.json", "additional_chat_templates/x.jinja", "not there"):
        assert model_file(folder, name) == folder / name
    (tmp_path / "secret").write_text("{}")
    other = snapshot(tmp_path / "other")
    for number, target in enumerate(
        ("/etc/passwd", "../../../secret", other / "config.json", "../../refs", "../../blobs/../x", "../../../")
    ):
        (folder / f"l{number}").symlink_to(target)
        with pytest.raises(ModelError, match="leads out"):
            model_file(folder, f"l{number}")
    plain = tmp_path / "plain"
    plain.mkdir()
    (tmp_path / "blobs").mkdir()
    (plain / "config.json").symlink_to("../blobs/x")
    (plain / "loop").symlink_to("loop")
    for name in ("config.json", "loop", "nul\0", "../secret"):
        with pytest.raises(ModelError):
            model_file(plain, name)
