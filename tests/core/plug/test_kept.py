"""Documents of plugin.yaml files are read once for all runs, and again when a file has changed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from infeng_core.errors import ManifestError
from infeng_core.plug import kept as module
from infeng_core.plug.kept import Kept
from infeng_core.settings import yamlfile

YAML = "infeng_plugin: 1\nname: shout\nversion: 0.1\nprovides:\n  tokenizers: [a, b]\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "plugin.yaml"
    path.write_text(YAML)
    return path


def state(path: Path) -> tuple[int, ...]:
    found = path.stat()
    return found.st_mtime_ns, found.st_size


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Every reading of YAML."""
    found: list[Path] = []
    read = yamlfile.read
    monkeypatch.setattr(yamlfile, "read", lambda path: (found.append(path), read(path))[1])
    return found


def test_a_document_is_read_once_and_is_the_same_from_the_cache(tmp_path, file, reads):
    place = tmp_path / "kept" / "plugins.json"
    first = Kept(place)
    document = first.document(file, state(file))
    first.save()
    again = Kept(place).document(file, state(file))
    assert reads == [file] and again == document
    assert again.place(("provides", "tokenizers", "1")) == f"{file}:5: provides.tokenizers.1"
    assert place.stat().st_mode & 0o777 == 0o600 and [path.name for path in place.parent.iterdir()] == ["plugins.json"]


def test_a_file_of_another_state_is_read_again(tmp_path, file, reads):
    place = tmp_path / "plugins.json"
    first = Kept(place)
    first.document(file, state(file))
    first.save()
    file.write_text(YAML.replace("shout", "whisper"))
    assert Kept(place).document(file, state(file)).data["name"] == "whisper" and len(reads) == 2


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"version": 1}', b"\xff"])
def test_a_damaged_cache_is_as_good_as_none(tmp_path, file, reads, content):
    place = tmp_path / "plugins.json"
    place.write_bytes(content)
    place.chmod(0o600)
    again = Kept(place)
    assert again.document(file, state(file)).data["name"] == "shout"
    again.save()
    assert Kept(place).document(file, state(file)).data["name"] == "shout" and len(reads) == 1


def test_a_damaged_entry_is_read_again(tmp_path, file, reads):
    place = tmp_path / "plugins.json"
    first = Kept(place)
    first.document(file, state(file))
    first.save()
    content = json.loads(place.read_text())
    content["files"][str(file)]["lines"] = [1]
    place.write_text(json.dumps(content))
    assert Kept(place).document(file, state(file)).data["name"] == "shout" and len(reads) == 2


def test_what_others_may_write_is_not_believed(tmp_path, file, reads):
    place = tmp_path / "plugins.json"
    first = Kept(place)
    first.document(file, state(file))
    first.save()
    place.chmod(0o666)
    Kept(place).document(file, state(file))
    assert len(reads) == 2


def test_what_cannot_be_written_or_is_wrong_is_no_entry(tmp_path, file, monkeypatch):
    nowhere = Kept(Path("/dev/null/plugins.json"))
    nowhere.document(file, state(file))
    nowhere.save()
    file.write_text("a: [")
    with pytest.raises(ManifestError):
        nowhere.document(file, state(file))
    file.write_text("a: 2001-01-01")
    place = tmp_path / "plugins.json"
    dated = Kept(place)
    assert str(dated.document(file, state(file)).data["a"]) == "2001-01-01"
    dated.save()
    assert not place.exists()


def test_only_so_many_are_kept(tmp_path, file, monkeypatch):
    monkeypatch.setattr(module, "MOST_FILES", 2)
    place = tmp_path / "plugins.json"
    many = Kept(place)
    for name in "abc":
        other = tmp_path / f"{name}.yaml"
        other.write_text(YAML)
        many.document(other, state(other))
    many.save()
    assert list(json.loads(place.read_text())["files"]) == [str(tmp_path / "b.yaml"), str(tmp_path / "c.yaml")]


def test_a_file_that_is_gone_is_not_kept_any_longer(tmp_path, file):
    place, other = tmp_path / "plugins.json", tmp_path / "other.yaml"
    other.write_text(YAML)
    first = Kept(place)
    for path in (file, other):
        first.document(path, state(path))
    first.save()
    other.unlink()
    file.write_text(YAML.replace("shout", "whisper"))
    second = Kept(place)
    second.document(file, state(file))
    second.save()
    assert list(json.loads(place.read_text())["files"]) == [str(file)]
