"""An adapter over a base computes what the base with the adapter merged into its weights computes, in every family.

All linears are changed, fused ones too, the embeddings by a LoRA of their own, and the final norm is replaced: so what
a family does around them (factors, norms by 1 + w, fused tensors) stands where PEFT has it.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from e2e import harness
from e2e.harness import VECTOR, settings
from goldens.families import (
    GEMMA2,
    GEMMA3,
    GPT_OSS,
    GRANITE,
    OLMO2,
    OLMO3,
    OLMOE,
    PHI4_SHORT,
    QWEN3,
    QWEN3_MOE,
    QWEN3_WINDOW,
    STARCODER2,
    FamilyCase,
)
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from infeng_core import SamplingParams
from infeng_core.errors import AdapterError
from infeng_core.requests.request import Request

RANK, ALPHA = 5, 10
TOLERANCE = 2e-4
Tensors = dict[str, NDArray[np.float32]]

case = pytest.mark.parametrize(
    "case",
    [
        PHI4_SHORT,
        GEMMA2,
        GPT_OSS,
        STARCODER2,
        pytest.param(GRANITE, marks=pytest.mark.slow),
        pytest.param(OLMO3, marks=pytest.mark.slow),
        pytest.param(QWEN3_MOE, marks=pytest.mark.slow),
        pytest.param(QWEN3_WINDOW, marks=pytest.mark.slow),
    ],
    ids=lambda case: case.name,
)


def is_target(name: str) -> bool:
    ends = name in ("model.embed_tokens.weight", "lm_head.weight") or name.endswith(".mlp.gate.weight")  # the router
    return ends or (name.endswith(("_proj.weight", ".c_fc.weight")) and ".experts." not in name)


def adapter(weights: Tensors) -> tuple[Tensors, Tensors]:
    """Return an adapter's tensors under PEFT's names, and the weights with it merged."""
    random, found, merged = np.random.RandomState(5), {}, dict(weights)
    for name in filter(is_target, weights):
        rows, columns = weights[name].shape
        module = f"base_model.model.{name.removesuffix('.weight')}"
        a = (random.standard_normal((RANK, columns)) / np.sqrt(columns)).astype(np.float32)
        b = (random.standard_normal((rows, RANK)) * 0.2).astype(np.float32)
        if "embed" in name:
            found |= {f"{module}.lora_embedding_A": b.T.copy(), f"{module}.lora_embedding_B": a.T.copy()}
        else:
            found |= {f"{module}.lora_A.weight": a, f"{module}.lora_B.weight": b}
        merged[name] = weights[name] + np.float32(ALPHA / RANK) * b @ a
    if "model.norm.bias" in weights:
        return found, merged
    norm = random.uniform(-0.5, 0.5, weights["model.norm.weight"].size).astype(np.float32)
    found["base_model.model.model.norm.weight"] = merged["model.norm.weight"] = norm
    return found, merged


@pytest.mark.parametrize("implementation", [VECTOR, pytest.param("numpy", marks=pytest.mark.slow)])
@case
def test_an_adapter_equals_merged_weights(implementation: str, case: FamilyCase, tmp_path: Path) -> None:
    base, whole, peft = case.write(tmp_path / "base"), case.write(tmp_path / "merged"), tmp_path / "adapter"
    weights = load_file(base / "model.safetensors")
    tensors, merged = adapter(weights)
    if "lm_head.weight" not in weights:  # the head of a tied model keeps the embeddings without the adapter
        merged["lm_head.weight"] = weights["model.embed_tokens.weight"]
        config_path = whole / "config.json"
        config_path.write_text(json.dumps(json.loads(config_path.read_text()) | {"tie_word_embeddings": False}))
    save_file(merged, whole / "model.safetensors", metadata={"format": "pt"})
    peft.mkdir()
    save_file(tensors, peft / "adapter_model.safetensors")
    targets = sorted({name.split(".")[-2] for name in weights if is_target(name)})
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "target_modules": targets}
    saved = ["model.norm"] if "base_model.model.model.norm.weight" in tensors else None
    (peft / "adapter_config.json").write_text(json.dumps({**config, "modules_to_save": saved}))
    rows = range(0, len(case.prompt), 7)
    with harness.engine(whole, settings(case, implementation)) as engine:
        expected = harness.logits(engine, case.prompt, rows)
    with harness.engine(base, settings(case, implementation)) as engine:
        without = harness.logits(engine, case.prompt, rows)
        logits = harness.logits(engine, case.prompt, rows, adapters=harness.applied(engine, [(peft, 1.0)]))
    assert np.abs(without - expected).max() > 1
    np.testing.assert_allclose(logits, expected, rtol=0, atol=TOLERANCE)


def test_an_adapter_that_replaces_a_norm_with_a_bias_is_refused(tmp_path: Path) -> None:
    base, peft = STARCODER2.write(tmp_path / "base"), tmp_path / "adapter"
    with_other_norms(peft, load_file(base / "model.safetensors"))
    config = json.loads((peft / "adapter_config.json").read_text())
    (peft / "adapter_config.json").write_text(json.dumps(config | {"modules_to_save": ["model.norm"]}))
    why = r"names model\.norm; only embeddings, head and norms without a bias can be replaced"
    with harness.engine(base, settings(STARCODER2, VECTOR)) as engine, pytest.raises(AdapterError, match=why):
        harness.applied(engine, [(peft, 1.0)])


def with_other_norms(directory: Path, weights: Tensors) -> Tensors:
    """Write what PEFT saves for ``modules_to_save: [norm]``, which all norms end in; return the weights with them."""
    random = np.random.RandomState(3)
    norms = {
        name: tensor * random.uniform(0.6, 1.6, tensor.shape).astype(np.float32)
        for name, tensor in weights.items()
        if name.endswith("norm.weight")
    }
    q = "model.layers.0.self_attn.q_proj"
    zeros = {f"{q}.lora_A.weight": np.zeros((RANK, weights[f"{q}.weight"].shape[1]), np.float32)}
    zeros |= {f"{q}.lora_B.weight": np.zeros((weights[f"{q}.weight"].shape[0], RANK), np.float32)}
    directory.mkdir()
    save_file(
        {f"base_model.model.{n}": t for n, t in {**norms, **zeros}.items()}, directory / "adapter_model.safetensors"
    )
    config = {"peft_type": "LORA", "r": RANK, "target_modules": [q], "modules_to_save": ["norm"]}
    (directory / "adapter_config.json").write_text(json.dumps(config))
    return weights | norms


@pytest.mark.parametrize("implementation", [VECTOR, pytest.param("numpy", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "case", [QWEN3, GEMMA3, OLMO2, pytest.param(OLMOE, marks=pytest.mark.slow)], ids=lambda c: c.name
)
def test_norms_of_q_and_k_are_replaced_with_all_others(implementation: str, case: FamilyCase, tmp_path: Path) -> None:
    base, whole, peft = case.write(tmp_path / "base"), case.write(tmp_path / "whole"), tmp_path / "adapter"
    changed = with_other_norms(peft, load_file(base / "model.safetensors"))
    assert sum(name.endswith("q_norm.weight") for name in changed) == case.config["num_hidden_layers"]
    save_file(changed, whole / "model.safetensors", metadata={"format": "pt"})
    rows = range(0, len(case.prompt), 7)
    with harness.engine(whole, settings(case, implementation)) as engine:
        expected = harness.logits(engine, case.prompt, rows)
    with harness.engine(base, settings(case, implementation)) as engine:
        without = harness.logits(engine, case.prompt, rows)
        applied = harness.applied(engine, [(peft, 1.0)])
        logits = harness.logits(engine, case.prompt, rows, chunks=3, adapters=applied)
        again = harness.logits(engine, case.prompt, rows)
    assert np.abs(without - expected).max() > 0.5
    np.testing.assert_allclose(logits, expected, rtol=0, atol=TOLERANCE)
    np.testing.assert_array_equal(again, without)


@pytest.mark.parametrize("case", [QWEN3, OLMO2], ids=lambda case: case.name)
def test_rows_with_norms_of_their_own_share_a_batch_and_no_bytes_change(case: FamilyCase, tmp_path: Path) -> None:
    base, peft = case.write(tmp_path / "base"), tmp_path / "adapter"
    with_other_norms(peft, load_file(base / "model.safetensors"))
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    prompts = [case.prompt[17 * i : 30 + 23 * i].tolist() for i in range(3)]
    requests = [
        Request(tuple(prompt), params, adapter=name) for prompt, name in zip(prompts, (None, "a", None), strict=True)
    ]
    found = []
    for batches in ([requests], [[one] for one in requests]):
        with harness.engine(base, settings(case, VECTOR), adapters={"a": peft}, threads=2, rows=29) as engine:
            recorder = harness.Recorder(engine)
            for batch in batches:
                engine.generate(batch)
            found.append([recorder.of(index) for index in range(3)])
    assert found[0] == found[1]
