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
from goldens.families import GEMMA2, GPT_OSS, GRANITE, OLMO3, PHI4_SHORT, QWEN3_MOE, QWEN3_WINDOW, FamilyCase
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

RANK, ALPHA = 5, 10
TOLERANCE = 2e-4
Tensors = dict[str, NDArray[np.float32]]

case = pytest.mark.parametrize(
    "case",
    [
        PHI4_SHORT,
        GEMMA2,
        GPT_OSS,
        pytest.param(GRANITE, marks=pytest.mark.slow),
        pytest.param(OLMO3, marks=pytest.mark.slow),
        pytest.param(QWEN3_MOE, marks=pytest.mark.slow),
        pytest.param(QWEN3_WINDOW, marks=pytest.mark.slow),
    ],
    ids=lambda case: case.name,
)


def is_target(name: str) -> bool:
    ends = name in ("model.embed_tokens.weight", "lm_head.weight") or name.endswith(".mlp.gate.weight")  # the router
    return ends or (name.endswith("_proj.weight") and ".experts." not in name)


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
    norm = random.uniform(-0.5, 0.5, weights["model.norm.weight"].size).astype(np.float32)
    found["base_model.model.model.norm.weight"] = merged["model.norm.weight"] = norm
    return found, merged


@pytest.mark.parametrize("implementation", [VECTOR, pytest.param("numpy", marks=pytest.mark.slow)])
@case
def test_an_adapter_is_what_it_would_be_merged(implementation: str, case: FamilyCase, tmp_path: Path) -> None:
    base, whole, peft = case.write(tmp_path / "base"), case.write(tmp_path / "merged"), tmp_path / "adapter"
    tensors, merged = adapter(load_file(base / "model.safetensors"))
    save_file(merged, whole / "model.safetensors", metadata={"format": "pt"})
    peft.mkdir()
    save_file(tensors, peft / "adapter_model.safetensors")
    targets = sorted({name.split(".")[-2] for name in merged if is_target(name)})
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "target_modules": targets}
    (peft / "adapter_config.json").write_text(json.dumps({**config, "modules_to_save": ["model.norm"]}))
    rows = range(0, len(case.prompt), 7)
    with harness.engine(whole, settings(case, implementation)) as engine:
        expected = harness.logits(engine, case.prompt, rows)
    with harness.engine(base, settings(case, implementation)) as engine:
        without = harness.logits(engine, case.prompt, rows)
        logits = harness.logits(engine, case.prompt, rows, adapters=harness.applied(engine, [(peft, 1.0)]))
    assert np.abs(without - expected).max() > 1
    np.testing.assert_allclose(logits, expected, rtol=0, atol=TOLERANCE)
