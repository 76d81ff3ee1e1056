"""LoRA adapters as GGUF files: what llama.cpp's ``convert_lora_to_gguf.py`` writes, checked against the base.

Each changed weight has two tensors, ``blk.0.attn_q.weight.lora_a`` (rank, inputs) and ``.lora_b`` (outputs, rank);
rows of q and k are in the base's order there. The product is multiplied by alpha / rank, by 1 where alpha is 0.
"""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from infeng_core.errors import AdapterError
from infeng_core.formats.adapters.packed import MAX_RANK
from infeng_core.formats.adapters.peft import Delta, PeftAdapter
from infeng_core.formats.adapters.sites import sites
from infeng_core.formats.adapters.snapshot import as_adapter_error
from infeng_core.formats.gguf.architectures import ARCHITECTURES, WITH_EXPERTS
from infeng_core.formats.gguf.checkpoint import halves
from infeng_core.formats.gguf.file import GgufFile
from infeng_core.formats.gguf.types import decoded
from infeng_core.models.config import ModelConfig
from infeng_core.models.fields import show

_NAMES = (ARCHITECTURES, WITH_EXPERTS)
OTHER_BASE = "load it over the model that it was trained on"


def read_gguf_adapter(path: Path, base: ModelConfig) -> PeftAdapter:
    """Read an adapter and check that it fits ``base``; raises AdapterError naming file, tensor, reason and remedy."""
    with as_adapter_error(path):
        return _Reader(GgufFile(path), base).read()


class _Reader:
    def __init__(self, file: GgufFile, base: ModelConfig) -> None:
        self.file, self.base = file, base
        fields = file.fields
        for key, wanted in (("general.type", "adapter"), ("adapter.type", "lora")):
            found = fields.text(key, "absent")
            if found != wanted:
                fields.fail(key, f"is {show(found)}, not {wanted}", "give a GGUF file of a LoRA adapter")
        if fields.has("adapter.alora.invocation_tokens"):
            fields.fail("adapter.alora.invocation_tokens", "is set, which is not run here", "use a plain LoRA adapter")
        name = fields.text("general.architecture")
        architecture = next((one[name] for one in _NAMES if name in one and one[name].family == base.family), None)
        if architecture is None:
            fields.fail("general.architecture", f"is {show(name)}, the base is a {base.family}", OTHER_BASE)
        self.architecture = architecture
        self.alpha = fields.number("adapter.lora.alpha", -1e6, 1e6)
        self.sites = sites(base).matrices

    def read(self) -> PeftAdapter:
        weights = sorted({name.rsplit(".lora_", 1)[0] for name in self.file.tensors})
        if not weights:
            self.fail("holds no tensor")
        deltas = {delta.site.module: delta for delta in map(self._delta, weights)}
        name = self.file.fields.data.get("general.base_model.0.name", "")
        return PeftAdapter(self.file.path, str(name)[:200], deltas, biases={}, saved={}, base_weights={})

    def _delta(self, weight: str) -> Delta:
        module = (self.architecture.theirs(weight) or "").removesuffix(".weight")
        site = self.sites.get(module)
        if site is None:
            self.fail(f"tensor {weight[:200]} has no place in this base")
        a, b = (self._floats(f"{weight}.lora_{side}") for side in "ab")
        if site.kind == "embedding":
            a = np.ascontiguousarray(a.T)  # stored (vocab, rank), for its rows are looked up
        rank = a.shape[0]
        if not 1 <= rank <= MAX_RANK:
            self.fail(f"tensor {weight}.lora_a has the rank {rank}, it may be 1 to {MAX_RANK}")
        inputs, outputs = (site.part.rows, site.k) if site.kind == "embedding" else (site.k, site.part.rows)
        if a.shape != (rank, inputs) or b.shape != (outputs, rank):
            expected = f"({rank}, {inputs}) and ({outputs}, {rank})"
            self.fail(f"tensors {weight}.lora_a and .lora_b are {a.shape} and {b.shape}, {expected} are expected")
        heads = self.architecture.rotary_heads(f"{module}.weight", self.base.heads, self.base.kv_heads)
        scaling = self.alpha / rank if self.alpha else 1.0
        return Delta(site, a, halves(b, heads) if heads else b, scaling, magnitude=None, bias=None)

    def _floats(self, name: str) -> NDArray[np.float32]:
        tensor = self.file.tensors.get(name)
        if tensor is None:
            self.fail(f"tensor {name[:200]} is missing")
        if len(tensor.shape) != 2 or not tensor.type.is_read:
            self.fail(f"tensor {name[:200]} is {tensor.type.name} {tensor.shape}, it must be a matrix of numbers")
        values = decoded(tensor.type, self.file.rows(name, 0, tensor.shape[0]))
        if not np.isfinite(values).all():
            self.fail(f"tensor {name[:200]} holds a value that is not finite")
        return values

    def fail(self, why: str) -> NoReturn:
        raise AdapterError(f"{self.file.path}", why, OTHER_BASE)
