"""Single trained rows of embedding and head, as PEFT saves them: what is replaced, how exactly, and what is refused."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from adapter_calls import convert_adapter, load_adapter
from goldens.adapted import ADAPTED, TRAINED_TOKENS, Adapted
from goldens.peft_files import tensors_of
from infeng_gguf.adapter_writer import write_gguf_adapter
from infeng_numpy.packed import unpack_stacked
from infeng_peft import adapter as adapter_module
from infeng_peft.adapter import read_peft
from numpy.typing import NDArray
from safetensors.numpy import save_file

from infeng_core.errors import AdapterError
from infeng_core.formats.adapters.packed import LoraPart, PackedAdapter
from infeng_core.formats.floats import widened
from infeng_core.formats.quant import BUILTIN
from infeng_core.formats.tensors import LoadedModel

Bases = Callable[[Adapted, str], LoadedModel]
TIED, APART = (next(case for case in ADAPTED if case.name == name) for name in ("tokens-tied", "tokens-dora"))
EMBED, HEAD = "base_model.model.model.embed_tokens", "base_model.model.lm_head"
ROWS = "token_adapter.trainable_tokens_delta"
WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
FORMAT = {"f32": "f32", "bf16": "bf16", "int8": "int8-row"}
ERROR = {"f32": 1e-6, "bf16": 2**-8, "int8": 0.5 / 127 + 2**-9}  # of the largest distance from the base's row


def b_of(part: LoraPart) -> NDArray[np.float32]:
    """Return B, (outputs, rank)."""
    values: Any = part.b.transpose(0, 2, 1).reshape(-1, part.rank)
    values = widened(values) if values.dtype == np.uint16 else values.astype(np.float32)
    return values if part.b_scale is None else values * widened(part.b_scale)[:, None]


def embedded(adapter: PackedAdapter, model: LoadedModel) -> NDArray[np.float32]:
    """Return the embedding of every token with an adapter, (vocab, hidden)."""
    found = adapter.saved_tensors.get("embed", model.tensors["embed"]).dequantize()
    assert adapter.embedding is not None and adapter.embedding.scaling == 1.0
    return found + (adapter.embedding.a @ b_of(adapter.embedding.part).T)[:, : found.shape[1]]


def headed(adapter: PackedAdapter, model: LoadedModel) -> NDArray[np.float32]:
    """Return the rows of the head with an adapter, (vocab, hidden)."""
    base = adapter.saved_tensors.get("lm_head", model.tensors.get("lm_head", model.tensors["embed"])).dequantize()
    tensor = adapter.tensors["lm_head"]
    [part] = tensor.parts
    assert (tensor.scaling[: part.rank] == 1).all()
    a = unpack_stacked(BUILTIN[FORMAT[adapter.dtype]], tensor.a, tensor.rank, base.shape[1])
    return base + (b_of(part) @ a)[: len(base)]


@pytest.mark.parametrize("format", ["f32", "int8-row", "int4-g32"])
@pytest.mark.parametrize("dtype", ["f32", "bf16", "int8"])
@pytest.mark.parametrize("case", [TIED, APART], ids=lambda case: case.name)
def test_trained_rows_are_replaced_and_no_other_row_changes(
    case: Adapted, dtype: Any, format: str, bases: Bases
) -> None:
    model = bases(case, format)
    adapter = load_adapter(case.directory, model, dtype)
    stored = tensors_of(case.directory / WEIGHTS)
    head = TRAINED_TOKENS if case is TIED else [40, 4]
    places = (
        (EMBED, TRAINED_TOKENS, embedded(adapter, model), model.tensors["embed"]),
        (HEAD, head, headed(adapter, model), model.tensors.get("lm_head", model.tensors["embed"])),
    )
    for module, tokens, found, base in places:
        plain, trained = base.dequantize(), stored[f"{EMBED if case is TIED else module}.{ROWS}"]
        others = np.setdiff1d(np.arange(len(plain)), tokens)
        assert np.array_equal(found[others], plain[others])
        distance = np.abs(trained - plain[tokens]).max()
        assert np.abs(found[tokens] - trained).max() <= ERROR[dtype] * distance + 1e-6
        assert distance > 0.1
    assert adapter.trained_tokens == tuple(sorted({*TRAINED_TOKENS, *head}))


def test_scale_multiplies_the_products_alone(bases: Bases) -> None:
    model = bases(TIED, "f32")
    plain, scaled = (load_adapter(TIED.directory, model, "f32", scale=scale) for scale in (1.0, 0.37))
    assert np.array_equal(embedded(plain, model), embedded(scaled, model))
    name = "layers.0.qkv_proj"
    assert np.allclose(scaled.tensors[name].scaling, 0.37 * plain.tensors[name].scaling)


def test_an_artifact_keeps_them_for_this_base_and_this_scale(bases: Bases, tmp_path: Path) -> None:
    model = bases(TIED, "f32")
    made = convert_adapter(TIED.directory, tmp_path / "artifact", model, "int8")
    assert made.bound
    packed, found = load_adapter(TIED.directory, model, "int8"), load_adapter(made.path, model, "int8")
    assert found.id == packed.id and found.trained_tokens == packed.trained_tokens
    with pytest.raises(AdapterError, match="another format of it"):
        load_adapter(made.path, bases(TIED, "int8-row"), "int8")
    with pytest.raises(AdapterError, match=r"cannot be scaled by 2\.0"):
        load_adapter(made.path, model, "int8", scale=2.0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the adapter over the tied base."""
    return Path(shutil.copytree(TIED.directory, tmp_path / "adapter"))


def change(folder: Path, tensors: Any = None, **config: Any) -> None:
    """Add tensors to an adapter, and change its configuration."""
    if tensors is not None:
        stored = {name: value.astype(np.float32) for name, value in tensors_of(folder / WEIGHTS).items()}
        save_file(stored | tensors, folder / WEIGHTS)
    path = folder / CONFIG
    path.write_text(json.dumps(json.loads(path.read_text()) | config))


def test_rows_are_replaced_in_the_matrices_that_peft_saved_with_them(bases: Bases, folder: Path) -> None:
    """``save_embedding_layers=True`` writes them, for the tied head as well, and its copy of the rows."""
    model = bases(TIED, "f32")
    whole = model.tensors["embed"].dequantize()
    rows = tensors_of(folder / WEIGHTS)[f"{EMBED}.{ROWS}"].astype(np.float32)
    below = [f"{module}.token_adapter.base_layer.weight" for module in (EMBED, HEAD)]
    wanted = load_adapter(folder, model, "f32").id
    change(folder, {**dict.fromkeys(below, whole), f"{HEAD}.{ROWS}": rows})
    assert load_adapter(folder, model, "f32").id == wanted
    other = np.random.default_rng(1).standard_normal(whole.shape, np.float32)
    change(folder, dict.fromkeys(below, other))
    adapter = load_adapter(folder, model, "f32")
    assert adapter.saved_tensors.keys() == {"embed", "lm_head"}
    other[TRAINED_TOKENS] = rows
    for found in (embedded(adapter, model), headed(adapter, model)):
        assert np.abs(found - other).max() < 1e-5


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"trainable_token_indices": [1, 2, 257]}, "has token 257, the base has 257 tokens"),
        ({"trainable_token_indices": [1, 2]}, "is (3, 96), (2, 96) is expected"),
        ({"trainable_token_indices": {"q_proj": [1, 2, 3]}}, "names 'q_proj': rows of embedding and head"),
        ({"trainable_token_indices": {"embed_tokens": [1, 2, 3], "model.embed_tokens": [4]}}, "can be trained, once"),
        (
            {"trainable_token_indices": {"embed_tokens": [1, 2, 3], "lm_head": [4]}, "ensure_weight_tying": True},
            "has other tokens for the head than for the embedding together with ensure_weight_tying",
        ),
        ({"target_modules": ["q_proj", "up_proj", "embed_tokens"]}, "also changes: PEFT does not define both"),
        ({"target_modules": ["q_proj", "up_proj", "lm_head"]}, "rows of lm_head, which the adapter also changes"),
        ({"modules_to_save": ["embed_tokens"]}, "also replaces: PEFT does not define both"),
        ({"alora_invocation_tokens": [5]}, "together with alora_invocation_tokens: it would change the tokens before"),
        ({"trainable_token_indices": None}, "has no place in this base"),
    ],
)
def test_what_peft_does_not_define_is_refused_by_name(
    config: dict[str, Any], reason: str, bases: Bases, folder: Path
) -> None:
    change(folder, **config)
    with pytest.raises(AdapterError, match=re.escape(reason)) as caught:
        load_adapter(folder, bases(TIED, "f32"), "f32")
    assert caught.value.remedy


def test_so_many_that_a_small_file_would_take_much_memory_are_refused(
    bases: Bases, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapter_module, "MAX_PLACES", 3 * 257 - 1)
    with pytest.raises(AdapterError, match="has 3 tokens: 2 may be trained of 257"):
        load_adapter(folder, bases(TIED, "f32"), "f32")


def test_head_and_embedding_of_a_tied_base_may_have_tokens_of_their_own(bases: Bases, folder: Path) -> None:
    model = bases(TIED, "f32")
    rows = np.full((1, 96), 3.0, np.float32)
    config = {"trainable_token_indices": {"embed_tokens": TRAINED_TOKENS, "lm_head": [7]}}
    change(folder, {f"{HEAD}.{ROWS}": rows}, **config)
    adapter = load_adapter(folder, model, "f32")
    head, plain = headed(adapter, model), model.tensors["embed"].dequantize()
    assert np.abs(head[7] - 3).max() < 1e-5
    assert np.array_equal(head[TRAINED_TOKENS], plain[TRAINED_TOKENS])


def test_they_are_not_written_to_gguf(bases: Bases, tmp_path: Path) -> None:
    model = bases(TIED, "f32")
    with pytest.raises(AdapterError, match=r"llama\.cpp applies plain LoRA only"):
        write_gguf_adapter(read_peft(TIED.directory, model.config), model.config, tmp_path / "a.gguf")
