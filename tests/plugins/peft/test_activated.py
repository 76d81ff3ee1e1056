"""The invocation of an activated adapter, in a packed one, an artifact and the cache of packed ones."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from adapter_calls import convert_adapter, load_adapter
from goldens.adapted import ACTIVATED, Adapted
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


def test_it_is_not_written_as_a_plain_gguf_adapter(bases: Bases, tmp_path: Path) -> None:
    model = bases(CASE, "f32")
    weights = read_peft(CASE.directory, model.config)
    with pytest.raises(AdapterError, match="aLoRA"):
        write_gguf_adapter(weights, model.config, tmp_path / "a.gguf")
    assert not (tmp_path / "a.gguf").exists()
