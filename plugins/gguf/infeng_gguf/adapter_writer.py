"""The writer of LoRA adapters in GGUF files; ``adapter.py`` describes their form."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from infeng_peft.api import AdapterWeights, Delta
from numpy.typing import NDArray

from infeng_core.api import AdapterError
from infeng_core.api.formats import ModelConfig
from infeng_gguf.adapter import INVOCATION
from infeng_gguf.architectures import BY_FAMILY
from infeng_gguf.export import interleaved
from infeng_gguf.writer import NewTensor, type_for, write_gguf

REMEDY = "give an adapter of pairs of A and B of linears"


def write_gguf_adapter(adapter: AdapterWeights, base: ModelConfig, destination: Path, format: str = "f16") -> None:
    """Write an adapter of ``base`` as the new file ``destination``.

    format: of A and B, f16, bf16 or f32. The file has one alpha, the first module's; where the scaling of another
    module differs (rsLoRA, alpha_pattern), its B is multiplied by the quotient. Raises AdapterError for contents that
    llama.cpp does not apply, OSError for a file that cannot be written.
    """
    _require_plain(adapter)
    first = next(iter(adapter.deltas.values()))
    alpha = first.scaling * first.a.shape[0]
    values: dict[str, NDArray[np.float32]] = {}
    for delta in adapter.deltas.values():
        name = _name(adapter, delta, base)
        heads = BY_FAMILY[base.family].rotary_heads(f"{delta.site.module}.weight", base.heads, base.kv_heads)
        b = delta.b * np.float32(delta.scaling * delta.a.shape[0] / alpha)
        values[f"{name}.lora_a"] = delta.a.T if delta.site.kind == "embedding" else delta.a  # rows are looked up
        values[f"{name}.lora_b"] = interleaved(b, heads) if heads else b
    tensors = [NewTensor(name, type_for(format, one.shape[-1]), one.shape) for name, one in values.items()]
    write_gguf(
        destination, _metadata(adapter, base, alpha), tensors, lambda one: np.ascontiguousarray(values[one.name])
    )


def _metadata(adapter: AdapterWeights, base: ModelConfig, alpha: float) -> Mapping[str, Any]:
    invocation = {INVOCATION: np.array(adapter.invocation, np.uint32)} if adapter.invocation else {}
    return {
        "general.architecture": BY_FAMILY[base.family].name,
        "general.type": "adapter",
        "adapter.type": "lora",
        "adapter.lora.alpha": float(alpha),
        **invocation,
    }


def _require_plain(adapter: AdapterWeights) -> None:
    is_more = any(one.magnitude is not None or one.bias is not None for one in adapter.deltas.values())
    is_more = is_more or bool(adapter.biases or adapter.saved or adapter.base_weights or adapter.trained)
    if is_more or not adapter.deltas:
        why = "llama.cpp applies plain LoRA only: no magnitudes, biases or whole modules"
        raise AdapterError(f"{adapter.source}", why, REMEDY)


def _name(adapter: AdapterWeights, delta: Delta, base: ModelConfig) -> str:
    """Return the GGUF name of the weight that a delta changes."""
    try:
        return BY_FAMILY[base.family].ours(f"{delta.site.module}.weight")
    except KeyError:
        why = f"{delta.site.module} of a {base.family} is not written to GGUF"
        raise AdapterError(f"{adapter.source}", why, REMEDY) from None
