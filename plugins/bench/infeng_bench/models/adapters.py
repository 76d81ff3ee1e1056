"""Random LoRA adapters for a model's shapes, made once and kept in the cache: speed does not depend on their values.

An adapter is a PEFT directory: A uniform as in PEFT's initialization, B normal instead of zero, alpha twice the rank.
B A is about a tenth as large as the weights of ``synthetic``'s models, so an adapter changes the output.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from infeng_convert.api import read_config
from numpy.typing import NDArray

from infeng_bench.models.cache import digest, header, made_once
from infeng_bench.models.shapes import SHAPES, model_config
from infeng_core.api import UsageError, cache_root, unknown_key_remedy
from infeng_core.api.formats import ModelConfig, layout

VERSION = 1  # part of the cache key; raised when the written files change

TARGETS: Mapping[str, tuple[str, ...]] = {
    "all": ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
    "qv": ("q_proj", "v_proj"),
}
"""Short names of usual sets of modules; users can also name modules, embed_tokens and lm_head included."""

DTYPES = {"bf16": "BF16", "f32": "F32"}  # stored type -> its name in safetensors

MOST_RANK = 1024
DEVIATION = 0.02  # of B, and of the weights of synthetic models
EMBEDDING = "embed_tokens"


@dataclass(frozen=True)
class Module:
    """A matrix of the checkpoint that an adapter may change: ``rows`` outputs by ``k`` inputs."""

    path: str  # "model.layers.0.self_attn.q_proj"
    rows: int
    k: int

    @property
    def name(self) -> str:
        """The last part, as in target_modules."""
        return self.path.rpartition(".")[2]


def peft_directory(
    model: str | Path | ModelConfig,
    rank: int,
    targets: str = "all",
    seed: int = 0,
    *,
    dora: bool = False,
    dtype: str = "bf16",
    invocation: tuple[int, ...] = (),
) -> Path:
    """Return a PEFT directory of a random adapter for ``model``, made on the first call.

    model: a name that ``shapes`` knows, a config.json, a Hugging Face directory, or a model's sizes.
    targets: "all" (the linears of the layers), "qv", or names of modules separated by commas.
    seed: of the values. dora: with magnitudes near the norms of ``synthetic``'s weights.
    dtype: "bf16" or "f32", of the file. invocation: the tokens of an activated adapter.

    Raises UsageError for an invalid rank, dtype or target, ModelError for a config that the engine cannot run,
    ResourceError if the disk is full.
    """
    config, stem = _shape(model)
    if not 1 <= rank <= MOST_RANK:
        raise UsageError(f"rank {rank}", "no adapter has it", f"give a rank from 1 to {MOST_RANK}")
    if dtype not in DTYPES:
        raise UsageError(f"adapter dtype {dtype!r}", "unknown", unknown_key_remedy(dtype, DTYPES))
    chosen = target_modules(config, targets)
    if dora and any(module.name == EMBEDDING for module in chosen):
        raise UsageError("DoRA", f"{EMBEDDING} has no magnitudes here", "leave it out of the targets")
    facts = [VERSION, [(m.path, m.rows, m.k) for m in chosen], rank, seed, dora, dtype]
    facts += [invocation] if invocation else []
    kind = "dora" if dora else "alora" if invocation else "lora"
    name = f"{stem}-{kind}-r{rank}-s{seed}-{digest(facts)}"

    def fill(folder: Path) -> None:
        names = sorted({module.name for module in chosen})
        activated = {"alora_invocation_tokens": invocation} if invocation else {}
        config = _config(stem, rank, names, dora) | activated
        (folder / "adapter_config.json").write_text(json.dumps(config, indent=1))
        with (folder / "adapter_model.safetensors").open("wb") as file:
            file.write(header(DTYPES[dtype], dict(_shapes(chosen, rank, dora))))
            for values in _values(chosen, rank, seed, dora):
                file.write((_bf16(values) if dtype == "bf16" else values).data)

    return made_once(cache_root() / "bench" / "adapters" / name, "adapter_model.safetensors", fill)


def random_adapters(
    model: str | Path | ModelConfig, count: int, rank: int | Sequence[int], targets: str
) -> dict[str, Path]:
    """Return ``count`` random adapters by name, "a0", "a1", ... rank: one for all, or several in turn."""
    ranks = [rank] if isinstance(rank, int) else rank
    return {f"a{k}": peft_directory(model, ranks[k % len(ranks)], targets, k) for k in range(count)}


def target_modules(config: ModelConfig, targets: str) -> list[Module]:
    """Return the modules that ``targets`` names, in the model's order; raises UsageError for unknown names."""
    every = list(_modules(config))
    known = {module.name for module in every}
    wanted = TARGETS.get(targets) or tuple(part for part in targets.split(",") if part)
    if not wanted:
        raise UsageError("targets", "none is named", f"give {', '.join(TARGETS)} or names such as q_proj,v_proj")
    for name in wanted:
        if name not in known:
            remedy = unknown_key_remedy(name, [*TARGETS, *sorted(known)])
            raise UsageError(f"target {name!r}", "the model has no such module", remedy)
    return [module for module in every if module.name in wanted]


def _modules(config: ModelConfig) -> Iterator[Module]:
    for tensor in layout(config).tensors:
        for source, rows in {part.source: part.source_rows for part in tensor.parts}.items():
            yield Module(source.removesuffix(".weight"), rows, tensor.k)
    if config.tie_embeddings:
        yield Module("lm_head", config.vocab, config.hidden)


def _shape(model: str | Path | ModelConfig) -> tuple[ModelConfig, str]:
    """Return a model's sizes and its name in the cache."""
    if isinstance(model, ModelConfig):
        return model, f"{model.family}-{model.hidden}x{model.layers}"
    path = Path(model).expanduser()
    if str(model) not in SHAPES and path.is_dir():
        return read_config(path), path.resolve().name
    config = model_config(model)
    return config, path.stem if path.suffix == ".json" else str(model)


def _config(stem: str, rank: int, names: list[str], dora: bool) -> dict[str, Any]:
    """Return adapter_config.json as PEFT writes it."""
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": f"synthetic/{stem}",
        "r": rank,
        "lora_alpha": 2 * rank,
        "lora_dropout": 0.0,
        "target_modules": names,
        "bias": "none",
        "fan_in_fan_out": False,
        "use_rslora": False,
        "use_dora": dora,
        "modules_to_save": None,
        "inference_mode": True,
    }


def _shapes(modules: list[Module], rank: int, dora: bool) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield name and shape of every tensor of the file, module by module: A, B and DoRA's magnitudes."""
    for module in modules:
        prefix = f"base_model.model.{module.path}"
        if module.name == EMBEDDING:  # A has a column per token, B a row per hidden unit
            yield f"{prefix}.lora_embedding_A", (rank, module.rows)
            yield f"{prefix}.lora_embedding_B", (module.k, rank)
            continue
        yield f"{prefix}.lora_A.weight", (rank, module.k)
        yield f"{prefix}.lora_B.weight", (module.rows, rank)
        if dora:
            yield f"{prefix}.lora_magnitude_vector", (module.rows,)


def _values(modules: list[Module], rank: int, seed: int, dora: bool) -> Iterator[NDArray[np.float32]]:
    """Yield the values of every tensor in the order of ``_shapes``."""
    rng = np.random.default_rng(seed)
    inputs = {f"base_model.model.{module.path}": module.k for module in modules}
    for name, shape in _shapes(modules, rank, dora):
        module, _, kind = name.removesuffix(".weight").rpartition(".")
        if kind.endswith("A"):
            yield (rng.random(shape, np.float32) * 2 - 1) / np.float32(np.sqrt(inputs[module]))
        elif kind.endswith("B"):
            yield rng.standard_normal(shape, np.float32) * np.float32(DEVIATION)
        else:
            norm = np.float32(DEVIATION * np.sqrt(inputs[module]))
            yield norm * (1 + rng.standard_normal(shape, np.float32) / np.float32(20))


def _bf16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Return finite values as bfloat16 bits, rounded to nearest, ties to even."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
