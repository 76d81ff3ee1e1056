"""Damaged tokenizer files are errors of ours: where a model is read, and where a GGUF is written of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import tokenizer_damages
from infeng_demo import model_dir
from infeng_gguf.file import GgufFile
from infeng_gguf.tokenizer import GgufTokenizer
from infeng_gguf.vocabulary import tokenizer_metadata
from infeng_tokenizers.api import HfTokenizer

from infeng_core.errors import InfengError, ModelError
from infeng_core.settings.config import EngineConfig

DOCUMENT, SETTINGS = "tokenizer.json", "tokenizer_config.json"
STEP = 30
"""One of so many damages is tried in every run, all of them in the slow ones."""


def damaged(source: Path) -> Iterator[tuple[str, str, bytes]]:
    """Yield (file, what was done, its bytes) for every damage of a model's tokenizer."""
    for name in (DOCUMENT, SETTINGS):
        data = (source / name).read_bytes()
        document = json.loads(data)
        found = [tokenizer_damages.damages(document), tokenizer_damages.of_bytes(data)]
        if name == DOCUMENT:
            found += [tokenizer_damages.of_vocabulary(document), tokenizer_damages.of_parts(document)]
        yield from ((name, what, made) for damages in found for what, made in damages)


def outcomes(source: Path, folder: Path, first: int, step: int) -> tuple[int, list[str]]:
    """Read and export a tokenizer under its damages; return how many there were, and those that are no error of ours.

    A tokenizer that is read encodes and decodes a text, which may fail as that text's error.
    """
    good = {name: (source / name).read_bytes() for name in (DOCUMENT, SETTINGS)}
    rows = max(json.loads(good[DOCUMENT])["model"]["vocab"].values()) + 1
    count, wrong = 0, []
    for number, (name, what, data) in enumerate(damaged(source)):
        if number % step != first % step:
            continue
        count += 1
        files = good | {name: data}
        for file, content in files.items():
            (folder / file).write_bytes(content)
        for act in (use, export):
            try:
                act(files, rows, folder)
            except InfengError:
                pass
            except BaseException as error:
                wrong.append(f"{name}: {what}: {error!r}")
    return count, wrong


def use(files: dict[str, bytes], rows: int, folder: Path) -> None:
    """Read what lies in ``folder``, encode and decode."""
    tokenizer = HfTokenizer(folder, EngineConfig())
    [ids] = tokenizer.encode(["Hello wörld <s> 12"])
    tokenizer.decode(ids)
    tokenizer.special_tokens  # noqa: B018


def export(files: dict[str, bytes], rows: int, folder: Path) -> None:
    """Ask for the keys of a GGUF; where there are some, they are those of a vocabulary that fits."""
    found = tokenizer_metadata(files, rows, (2,), folder)
    tokens = found["tokenizer.ggml.tokens"]
    assert len(tokens) == len(set(tokens)) == rows
    if "tokenizer.ggml.merges" in found:
        pairs = (merge.split(" ") for merge in found["tokenizer.ggml.merges"])
        assert {*tokens} >= {"".join(pair) for pair in pairs}


def vocabulary(third_party: Path, folder: Path, name: str) -> Path:
    """Write the tokenizer of a GGUF as the files that Hugging Face models have."""
    folder.mkdir()
    for file, data in GgufTokenizer(GgufFile(third_party / "gguf-vocab" / f"ggml-vocab-{name}.gguf")).files().items():
        (folder / file).write_bytes(data)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["byte-level", "SentencePiece"])
def test_a_damaged_tokenizer_is_one_clear_error_and_no_other_output(
    tmp_path: Path, kind: str, request: pytest.FixtureRequest, capfd: pytest.CaptureFixture[str]
) -> None:
    """A panic of the library would be lines of its own on standard error, or the end of this process."""
    source = model_dir() if kind == "byte-level" else request.getfixturevalue("third_party") / "stories260k"
    count, wrong = outcomes(source, tmp_path, 5, STEP)
    assert count > 30 and not wrong
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("name", "step"),
    [
        pytest.param("demo", 3, marks=pytest.mark.slow),
        pytest.param("stories260k", 1, marks=pytest.mark.slow),
        *(pytest.param(name, 9, marks=pytest.mark.nightly) for name in ("tokenizer-tinyllama", "gpt-2", "phi-3")),
    ],
)
def test_every_damage_of_published_tokenizers_is_a_clear_error(
    tmp_path: Path, third_party: Path, capfd: pytest.CaptureFixture[str], name: str, step: int
) -> None:
    source = model_dir() if name == "demo" else third_party / name
    if not source.is_dir():
        source = vocabulary(third_party, tmp_path / "source", name)
    (tmp_path / "damaged").mkdir()
    count, wrong = outcomes(source, tmp_path / "damaged", 0, step)
    assert count > 60 and not wrong
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("settings", "file", "why"),
    [
        ({"chat_template": [{"name": "default"}]}, SETTINGS, "chat_template holds .*, which is no template"),
        ({"chat_template": [{"name": "a/b", "template": ""}]}, SETTINGS, "chat_template holds"),
        ({"chat_template": 7}, SETTINGS, "chat_template holds 7"),
        ({"add_bos_token": "yes"}, SETTINGS, "add_bos_token is neither"),
        ([], SETTINGS, "not a JSON object"),
    ],
)
def test_settings_of_a_wrong_type_are_named(tmp_path: Path, settings: object, file: str, why: str) -> None:
    files = {DOCUMENT: (model_dir() / DOCUMENT).read_bytes(), SETTINGS: json.dumps(settings).encode()}
    with pytest.raises(ModelError, match=rf"{file}: {why}"):
        tokenizer_metadata(files, 4096, (2,), tmp_path)


def test_two_tokens_with_one_id_are_named(tmp_path: Path) -> None:
    document = json.loads((model_dir() / DOCUMENT).read_text())
    names = list(document["model"]["vocab"])
    document["model"]["vocab"][names[-1]] = document["model"]["vocab"][names[-2]]
    with pytest.raises(ModelError, match=r"tokenizer\.json: gives the id \d+ to both"):
        tokenizer_metadata({DOCUMENT: json.dumps(document).encode()}, 4096, (2,), tmp_path)


def test_a_template_that_is_not_utf_8_is_named(tmp_path: Path) -> None:
    files = {DOCUMENT: (model_dir() / DOCUMENT).read_bytes(), "chat_template.jinja": b"\xff"}
    with pytest.raises(ModelError, match=r"chat_template\.jinja: not UTF-8"):
        tokenizer_metadata(files, 4096, (2,), tmp_path)
