"""Run a model with PEFT adapters in binary32 and write its logits, or make random adapters: ``peft_run.py JOB.json``.

Needs an environment with torch, transformers and peft. A job is a list of mappings, one for each adapter to make or
each run:

{"make": directory, "model": directory, "lora": arguments of LoraConfig, "seed": n, ...}
{"run": file.npz, "model": directory, "adapters": [[directory, weight], ...], "prompts": [[id, ...], ...]}

Vectors of prompts are made with it too, by make_adapters.py.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import LoraLayer
from peft.tuners.lora.variants import calculate_alora_offsets
from transformers import AutoModelForCausalLM, PreTrainedModel

STEPS = 32  # greedy tokens after each prompt
GAIN = 0.6  # size of a low-rank change over that of the weight that it changes

Adapters = Sequence[tuple[Path | str, float]]


def base(directory: Path | str) -> PreTrainedModel:
    """Return the model in binary32."""
    return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").eval()


@torch.no_grad()
def make(
    model: Path | str,
    directory: Path | str,
    lora: dict[str, Any],
    seed: int,
    dtype: str = "float32",
    keeps_base: bool = False,
) -> None:
    """Write an adapter as PEFT does, as if trained: no part of it is left at zero or at what training begins with."""
    adapted = get_peft_model(base(model), LoraConfig(task_type="CAUSAL_LM", **lora))
    random = np.random.RandomState(seed)
    scalings = {
        name: module.scaling["default"] for name, module in adapted.named_modules() if isinstance(module, LoraLayer)
    }
    for name, parameter in sorted(adapted.named_parameters()):
        if not parameter.requires_grad:
            continue
        shape, rank = parameter.shape, parameter.shape[-1]
        normal = random.standard_normal(shape)
        scaling = next((value for module, value in scalings.items() if name.startswith(f"{module}.")), 1.0)
        fading = 0.8 ** np.arange(rank)  # of the ranks, as training leaves them
        fading /= np.linalg.norm(fading)
        if "lora_embedding_A" in name:
            value = normal
        elif "lora_embedding_B" in name:
            value = normal * fading * GAIN * 0.3 / scaling
        elif "lora_A" in name:
            value = normal / np.sqrt(shape[1])
        elif name.endswith("lora_B.default.bias"):
            value = 0.3 * normal / scaling
        elif "lora_B" in name:
            value = normal * fading * GAIN / scaling
        elif "magnitude" in name or (parameter.ndim == 1 and not name.endswith(".bias")):  # also norms
            value = parameter.numpy() * random.uniform(0.75, 1.3, shape)
        else:  # a bias, the embedding, the head
            value = parameter.numpy() + 0.4 * float(parameter.std()) * normal
        parameter.copy_(torch.from_numpy(np.asarray(value, np.float32)))
    # A prefix of the names is all that save_pretrained adds to such a state, so it may have another type.
    state = {name: tensor.to(getattr(torch, dtype)) for name, tensor in adapted.state_dict().items()}
    adapted.save_pretrained(directory, state_dict=state, save_embedding_layers=keeps_base)
    (Path(directory) / "README.md").unlink(missing_ok=True)
    config = Path(directory) / "adapter_config.json"
    text = json.loads(config.read_text()) | {"base_model_name_or_path": Path(model).name}
    config.write_text(json.dumps(text, indent=2, sort_keys=True) + "\n")


def adapted(model: Path | str, adapters: Adapters) -> torch.nn.Module:
    """Return the model with all ``adapters`` active at once, each with its weight."""
    plain = base(model)
    if not adapters:
        return plain
    names = [f"adapter{index}" for index in range(len(adapters))]
    made = PeftModel.from_pretrained(plain, adapters[0][0], adapter_name=names[0])
    for name, (directory, _) in list(zip(names, adapters, strict=True))[1:]:
        made.load_adapter(directory, adapter_name=name)
    made.base_model.set_adapter(names)
    for module in made.modules():
        for name, (_, weight) in zip(names, adapters, strict=True):
            if isinstance(module, LoraLayer) and name in module.scaling:
                module.scaling[name] *= weight
    return made.eval()


def activation(network: torch.nn.Module, ids: torch.Tensor) -> dict[str, list[int | None]]:
    """Return what steps after a prompt have to be told of activated adapters: PEFT searches only what a step reads."""
    configs = getattr(network, "peft_config", {})
    if not any(config.alora_invocation_tokens for config in configs.values()):
        return {}
    return {"alora_offsets": calculate_alora_offsets(configs, network.active_adapter, ids)}


@torch.no_grad()
def run(model: Path | str, adapters: Adapters, prompts: Sequence[Sequence[int]]) -> dict[str, NDArray[np.generic]]:
    """Return each prompt's ``logits`` (prompts, 3, vocab) after its first half, its last but one and its last token.

    ``greedy`` (prompts, STEPS) are the tokens that follow it, ``lead`` (prompts, STEPS) is how far each was before the
    second best.
    """
    torch.set_num_threads(1)
    network = adapted(model, adapters)
    logits, greedy, lead = [], [], []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        out, acting = network(input_ids=ids, use_cache=True), activation(network, ids)
        logits.append(out.logits[0, [len(prompt) // 2, len(prompt) - 2, len(prompt) - 1]].numpy())
        last = out.logits[0, -1]
        for _ in range(STEPS):
            best = last.topk(2)
            greedy.append(int(best.indices[0]))
            lead.append(float(best.values[0] - best.values[1]))
            ids = best.indices[:1][None]
            out = network(input_ids=ids, past_key_values=out.past_key_values, use_cache=True, **acting)
            last = out.logits[0, -1]
    return {
        "logits": np.stack(logits),
        "greedy": np.array(greedy, np.int32).reshape(-1, STEPS),
        "lead": np.array(lead, np.float32).reshape(-1, STEPS),
    }


@torch.no_grad()
def vectors(model: Path | str, adapters: Adapters, prompts: Sequence[Sequence[int]]) -> NDArray[np.float32]:
    """Return of each prompt the mean of its final hidden states and the last one: (prompts, 2, hidden)."""
    torch.set_num_threads(1)
    network = adapted(model, adapters)
    found = []
    for prompt in prompts:
        states = network(input_ids=torch.tensor([prompt]), output_hidden_states=True).hidden_states[-1][0]
        found.append(np.stack([states.double().mean(0).numpy(), states[-1].double().numpy()]))
    return np.stack(found).astype(np.float32)


def main(jobs: Sequence[dict[str, Any]]) -> None:
    """Do all of ``jobs``."""
    warnings.simplefilter("ignore")
    for job in jobs:
        if "make" in job:
            make(directory=job.pop("make"), **job)
        else:
            np.savez_compressed(job["run"], **run(job["model"], job["adapters"], job["prompts"]))


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
