"""The invocation of an activated adapter, in a packed one, an artifact and the cache of packed ones."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from adapter_calls import convert_adapter, load_adapter
from goldens.adapted import ACTIVATED, ADAPTED, Adapted
from infeng_gguf import adapter_writer
from infeng_gguf.adapter import INVOCATION
from infeng_gguf.adapter_writer import write_gguf_adapter
from infeng_peft import cached
from infeng_peft.adapter import read_peft

from infeng_core.errors import AdapterError
from infeng_core.formats.adapters.artifact import FILE
from infeng_core.formats.tensors import LoadedModel

Bases = Callable[[Adapted, str], LoadedModel]
CASE = ACTIVATED[0]


@pytest.mark.parametrize("case", ACTIVATED, ids=lambda case: case.name)
def test_an_artifact_keeps_the_invocation(case: Adapted, bases: Bases, tmp_path: Path) -> None:
    model = bases(case, "int8-row")
    made = convert_adapter(case.directory, tmp_path / "artifact", model, "int8")
    packed, found = load_adapter(case.directory, model, "int8"), load_adapter(made.path, model, "int8")
    assert packed.invocation == found.invocation == tuple(case.invocation)
    assert load_adapter(case.directory, model, "int8", scale=0.5).invocation == found.invocation


def test_other_invocations_are_other_contents(bases: Bases, tmp_path: Path) -> None:
    model, ids = bases(CASE, "f32"), set()
    for tokens in (None, [7, 5, 9], [7, 5], [9, 5, 7]):
        path = Path(shutil.copytree(CASE.directory, tmp_path / str(tokens)))
        config = json.loads((path / "adapter_config.json").read_text())
        (path / "adapter_config.json").write_text(json.dumps(config | {"alora_invocation_tokens": tokens}))
        found = load_adapter(path, model, "f32")
        assert found.invocation == tuple(tokens or ())
        ids.add(found.id)
    assert len(ids) == 4


def test_the_cache_of_packed_adapters_keeps_it(bases: Bases, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cached, "REST_SECONDS", 0.0)
    model = bases(CASE, "f32")
    first, again = (load_adapter(CASE.directory, model, "int8", cache=1 << 30) for _ in range(2))
    assert first.id == again.id and again.invocation == tuple(CASE.invocation)


def changed(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the description in an artifact's header."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    document = json.loads(header["__metadata__"]["adapter"])
    change(document)
    header["__metadata__"]["adapter"] = json.dumps(document)
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % 64)
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])


@pytest.mark.parametrize(
    ("tokens", "reason"),
    [
        ("go", "list of whole numbers"),
        ([1.5], "whole number"),
        ([-1], "must be from 0"),
        ([1] * 65, "has 65 tokens, it may have 64"),
        ([7, 5], "does not match the contents"),
        (None, "does not match the contents"),
    ],
)
def test_a_wrong_invocation_in_an_artifact_is_refused(tokens: Any, reason: str, bases: Bases, tmp_path: Path) -> None:
    model = bases(CASE, "f32")
    path = convert_adapter(CASE.directory, tmp_path / "artifact", model, "int8").path
    changed(path / FILE, lambda document: document.update(invocation=tokens))
    with pytest.raises(AdapterError, match=reason):
        load_adapter(path, model, "int8")


@pytest.mark.parametrize("case", [ACTIVATED[0], ACTIVATED[2]], ids=lambda case: case.name)
def test_a_gguf_adapter_keeps_the_invocation(case: Adapted, bases: Bases, tmp_path: Path) -> None:
    model = bases(case, "f32")
    write_gguf_adapter(read_peft(case.directory, model.config), model.config, tmp_path / "a.gguf", "f32")
    field = gguf.GGUFReader(tmp_path / "a.gguf").fields["adapter.alora.invocation_tokens"]
    assert field.types == [gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.UINT32]  # as llama.cpp requires
    assert field.contents() == case.invocation
    found, wanted = (load_adapter(path, model, "f32") for path in (tmp_path / "a.gguf", case.directory))
    assert found.invocation == wanted.invocation == tuple(case.invocation)
    assert found.id == wanted.id


@pytest.mark.parametrize(
    ("tokens", "reason"),
    [
        (np.array([], np.uint32), "1 to 64 tokens"),
        (np.ones(65, np.uint32), "1 to 64 tokens"),
        (np.array([-1], np.int32), "1 to 64 tokens"),
        (np.array([1.0], np.float32), "1 to 64 tokens"),
        (np.array([1 << 31], np.uint32), "has token 2147483648"),
        (["7"], "no list of numbers"),
        (7, "no list"),
    ],
    ids=str,
)
def test_a_wrong_invocation_in_a_gguf_file_is_refused(
    tokens: Any, reason: str, bases: Bases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = bases(CASE, "f32")
    metadata = adapter_writer._metadata
    monkeypatch.setattr(adapter_writer, "_metadata", lambda *given: metadata(*given) | {INVOCATION: tokens})
    write_gguf_adapter(read_peft(CASE.directory, model.config), model.config, tmp_path / "a.gguf", "f32")
    with pytest.raises(AdapterError, match=reason):
        load_adapter(tmp_path / "a.gguf", model, "f32")


def test_activated_embeddings_in_a_gguf_file_are_refused(bases: Bases, tmp_path: Path) -> None:
    [case] = [one for one in ADAPTED if one.name == "embedding"]
    model = bases(case, "f32")
    weights = replace(read_peft(case.directory, model.config), base_weights={}, invocation=(5,))
    write_gguf_adapter(weights, model.config, tmp_path / "a.gguf", "f32")
    with pytest.raises(AdapterError, match="does not define activated adapters of embeddings"):
        load_adapter(tmp_path / "a.gguf", model, "f32")
