"""The text model inside of a multimodal checkpoint is the text model alone: same logits, adapters under either name."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from e2e import harness
from e2e.harness import VECTOR, settings
from e2e.test_family_adapters import adapter
from goldens import oracle
from goldens.families import GEMMA3, MINISTRAL3, FamilyCase
from infeng_convert.configs.multimodal import PREFIXES, outside
from safetensors.numpy import load_file, save_file

PREFIX = "base_model.model."
WRAPPERS = {"gemma3": "Gemma3ForConditionalGeneration", "ministral3": "Mistral3ForConditionalGeneration"}
VISION = {"vision_tower.encoder.weight": np.ones((8, 8), np.float32), "model.projector.weight": np.ones(8, np.float32)}

names = pytest.mark.parametrize(
    "names", [PREFIXES[0], pytest.param(PREFIXES[1], marks=pytest.mark.slow)], ids=["new", "old"]
)


def wrap(case: FamilyCase, names: Mapping[str, str], directory: Path) -> Path:
    """Write a case as transformers writes the text model of a multimodal one."""
    case.write(directory)
    config: dict[str, Any] = {"architectures": [WRAPPERS[case.name]], "model_type": "outer", "vision_config": {"a": 1}}
    inner = {key: value for key, value in case.config.items() if key not in ("architectures", "tie_word_embeddings")}
    config |= {"text_config": inner, "tie_word_embeddings": case.config["tie_word_embeddings"]}
    (directory / "config.json").write_text(json.dumps(config))
    tensors = {outside(name, names): tensor for name, tensor in case.tensors()}
    save_file({**tensors, **VISION}, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


@names
@pytest.mark.parametrize("case", [GEMMA3, MINISTRAL3], ids=lambda case: case.name)
def test_a_wrapped_text_model_equals_the_text_model_alone(
    case: FamilyCase, names: Mapping[str, str], tmp_path: Path
) -> None:
    golden = oracle.golden(case)
    with harness.engine(wrap(case, names, tmp_path / "model"), settings(case, VECTOR)) as engine:
        logits = harness.logits(engine, golden["prompt"], golden["positions"])
    np.testing.assert_allclose(logits, golden["logits"], rtol=0, atol=oracle.TOLERANCE)


@names
def test_an_adapter_of_a_wrapped_model_equals_that_of_the_text_model(names: Mapping[str, str], tmp_path: Path) -> None:
    base, logits = MINISTRAL3.write(tmp_path / "base"), []
    tensors, _ = adapter(load_file(base / "model.safetensors"))
    for folder, found in (("alone", {}), ("inside", names)):
        directory = tmp_path / folder
        directory.mkdir()
        renamed = {f"{PREFIX}{outside(name.removeprefix(PREFIX), found)}": each for name, each in tensors.items()}
        save_file(renamed, directory / "adapter_model.safetensors")
        layers, embed, head = (outside(name, found) for name in ("model.layers", "model.embed_tokens", "lm_head"))
        config: dict[str, object] = {"peft_type": "LORA", "r": 5, "lora_alpha": 10}
        config["modules_to_save"] = [outside("model.norm", found)]
        config["target_modules"] = "|".join((rf"{re.escape(layers)}.*_proj", re.escape(embed), re.escape(head)))
        (directory / "adapter_config.json").write_text(json.dumps(config))
        with harness.engine(base, settings(MINISTRAL3, VECTOR)) as engine:
            applied = harness.applied(engine, [(directory, 1.0)])
            logits.append(harness.logits(engine, MINISTRAL3.prompt[:40], [39], adapters=applied))
    np.testing.assert_array_equal(logits[0], logits[1])
