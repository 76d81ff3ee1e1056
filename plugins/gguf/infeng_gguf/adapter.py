"""LoRA adapters in GGUF files of llama.cpp's ``convert_lora_to_gguf.py``, checked against the base.

Each changed weight has two tensors, ``blk.0.attn_q.weight.lora_a`` (rank, inputs) and ``.lora_b`` (outputs, rank), with
the rows of q and k in the order of the base's GGUF. The product is multiplied by alpha / rank, or by 1 if alpha is 0.
Tensors of experts have all experts of a layer: ``blk.0.ffn_up_exps.weight.lora_a`` (experts, rank, inputs) and
``.lora_b`` (experts, outputs, rank); their matrices are not transposed, even if those of the base's checkpoint are.
An activated adapter has its invocation's tokens in the metadata.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NoReturn

import numpy as np
from infeng_peft.api import AdapterWeights, Delta, WeightsReader, check_activated
from numpy.typing import NDArray

from infeng_core.api import AdapterError, ModelError, model_file
from infeng_core.api.adapters import MAX_INVOCATION, MAX_RANK, TargetModule, as_adapter_error, target_modules
from infeng_core.api.formats import ModelConfig, layout, show
from infeng_gguf.architectures import ARCHITECTURES, WITH_EXPERTS
from infeng_gguf.checkpoint import halves
from infeng_gguf.experts import Place, places
from infeng_gguf.file import GgufFile, is_gguf
from infeng_gguf.types import decoded

MOST_FILES = 64
"""Entries of a folder that are looked at."""

_NAMES = (ARCHITECTURES, WITH_EXPERTS)
INVOCATION = "adapter.alora.invocation_tokens"
OTHER_BASE = "load it over the model that it was trained on"


class GgufAdapterReader(WeightsReader):
    """The reader of LoRA adapters in GGUF files, for the hook."""

    def recognizes(self, path: Path) -> bool:
        """Return whether ``path`` is a file with GGUF's magic or suffix, or a folder of such adapters."""
        return any(_may_be_adapter(path / name) for name in _files_in(path)) if path.is_dir() else is_gguf(path)

    def files(self, path: Path) -> Sequence[Path]:
        """Return []: a file is packed at each load."""
        return []

    def read(self, path: Path, config: ModelConfig) -> AdapterWeights:
        """Return the adapter's weights, checked against the base; raises AdapterError."""
        with as_adapter_error(path):
            return _Reader(GgufFile(_one_in(path) if path.is_dir() else path), config).read()


def _files_in(folder: Path) -> list[str]:
    """Return the GGUF files of a folder by their names; [] if it holds another adapter's files."""
    names = [entry.name for entry in islice(folder.iterdir(), MOST_FILES)]
    is_other = any(name == "adapter_config.json" or name.endswith(".safetensors") for name in names)
    return [] if is_other else [name for name in names if name.endswith(".gguf")]


def _may_be_adapter(path: Path) -> bool:
    """Return whether a file of a folder calls itself an adapter, or is a link, which is refused by its name later."""
    if path.is_symlink():
        return True
    try:
        return GgufFile(path).metadata.get("general.type") == "adapter"
    except ModelError:
        return False


def _one_in(folder: Path) -> Path:
    """Return the only GGUF file of a folder; raises AdapterError for several, and for a link out of it."""
    names = _files_in(folder)
    if len(names) != 1:
        raise AdapterError(f"{folder}", f"holds {len(names)} .gguf files", "give each adapter a folder of its own")
    return model_file(folder, names[0], AdapterError)


class _Reader:
    def __init__(self, file: GgufFile, base: ModelConfig) -> None:
        self.file, self.base = file, base
        fields = file.fields
        for key, wanted in (("general.type", "adapter"), ("adapter.type", "lora")):
            found = fields.text(key, "absent")
            if found != wanted:
                fields.fail(key, f"is {show(found)}, not {wanted}", "give a GGUF file of a LoRA adapter")
        name = fields.text("general.architecture")
        architecture = next((one[name] for one in _NAMES if name in one and one[name].family == base.family), None)
        if architecture is None:
            fields.fail("general.architecture", f"is {show(name)}, the base is a {base.family}", OTHER_BASE)
        self.architecture = architecture
        self.alpha = fields.number("adapter.lora.alpha", -1e6, 1e6)
        self.sites = target_modules(base).matrices
        self.invocation = self._invocation()

    def read(self) -> AdapterWeights:
        other = next((name for name in self.file.tensors if not name.endswith((".lora_a", ".lora_b"))), None)
        if other is not None:
            self.fail(f"tensor {other[:200]} is neither A nor B of a weight (.lora_a, .lora_b)")
        weights = sorted({name.rpartition(".")[0] for name in self.file.tensors})
        if not weights:
            self.fail("holds no tensor")
        experts = self._experts(weights)
        deltas = {
            delta.site.module: delta
            for weight in weights
            for delta in (self._of_experts(weight, experts[weight]) if weight in experts else [self._delta(weight)])
        }
        sites = [delta.site for delta in deltas.values()]
        check_activated(self.invocation, sites, self.base, partial(self.file.fields.fail, INVOCATION))
        name = str(self.file.fields.data.get("general.base_model.0.name", ""))[:200]
        invocation = self.invocation
        return AdapterWeights(self.file.path, name, deltas, biases={}, saved={}, base_weights={}, invocation=invocation)

    def _invocation(self) -> tuple[int, ...]:
        """Return the tokens that activate it (aLoRA), which llama.cpp looks for as PEFT does; () for a plain one."""
        if not self.file.fields.has(INVOCATION):
            return ()
        found = self.file.numbers(INVOCATION)
        if found.dtype.kind not in "iu" or not 1 <= len(found) <= MAX_INVOCATION or found.min() < 0:
            self.file.fields.fail(INVOCATION, f"must be a list of 1 to {MAX_INVOCATION} tokens")
        return tuple(found.tolist())

    def _experts(self, weights: Collection[str]) -> Mapping[str, list[tuple[TargetModule, Place]]]:
        """Return the experts' matrices in each of ``weights`` that has some."""
        found: dict[str, list[tuple[TargetModule, Place]]] = {}
        for part, place in places(layout(self.base), frozenset(weights)).items():
            site = self.sites.get(part.module)  # experts' biases are parts, but not sites
            if site is not None and place.name in weights:
                found.setdefault(place.name, []).append((site, place))
        return found

    def _delta(self, weight: str) -> Delta:
        module = (self.architecture.theirs(weight) or "").removesuffix(".weight")
        site = self.sites.get(module)
        if site is None:
            self.fail(f"tensor {weight[:200]} has no place in this base")
        a, b = self._pair(weight, 2)
        if site.kind == "embedding":
            a = np.ascontiguousarray(a.T)  # stored (vocab, rank): rows are looked up
        inputs, outputs = (site.part.rows, site.k) if site.kind == "embedding" else (site.k, site.part.rows)
        self._check(weight, a, b, (outputs, inputs))
        heads = self.architecture.rotary_heads(f"{module}.weight", self.base.heads, self.base.kv_heads)
        return self._made(site, a, halves(b, heads) if heads else b)

    def _of_experts(self, weight: str, held: list[tuple[TargetModule, Place]]) -> Iterator[Delta]:
        shape = held[0][1].shape  # (experts, rows, k), or (rows, k) for one expert
        a, b = self._pair(weight, len(shape))
        self._check(weight, a, b, shape)
        rank, rows = a.shape[-2], shape[-2]
        a, b = a.reshape(-1, rank, shape[-1]), b.reshape(-1, rows, rank)
        for site, place in held:
            expert, begin = divmod(place.begin, rows)
            yield self._made(site, a[expert], b[expert, begin : begin + site.part.rows])

    def _made(self, site: TargetModule, a: NDArray[np.float32], b: NDArray[np.float32]) -> Delta:
        scaling = self.alpha / a.shape[0] if self.alpha else 1.0
        return Delta(site, a, b, scaling, magnitude=None, bias=None)

    def _check(self, weight: str, a: NDArray[np.float32], b: NDArray[np.float32], shape: tuple[int, ...]) -> None:
        """Raise AdapterError unless A and B fit a weight of this shape, (outputs, inputs) or (experts, ...)."""
        rank, experts = a.shape[-2], shape[:-2]
        if not 1 <= rank <= MAX_RANK:
            self.fail(f"tensor {weight}.lora_a has the rank {rank}, it may be 1 to {MAX_RANK}")
        wanted = (*experts, rank, shape[-1]), (*experts, shape[-2], rank)
        if (a.shape, b.shape) != wanted:
            expected = f"{wanted[0]} and {wanted[1]}"
            self.fail(f"tensors {weight}.lora_a and .lora_b are {a.shape} and {b.shape}, {expected} are expected")

    def _pair(self, weight: str, dimensions: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        return self._floats(f"{weight}.lora_a", dimensions), self._floats(f"{weight}.lora_b", dimensions)

    def _floats(self, name: str, dimensions: int) -> NDArray[np.float32]:
        tensor = self.file.tensors.get(name)
        if tensor is None:
            self.fail(f"tensor {name[:200]} is missing")
        if len(tensor.shape) != dimensions or not tensor.type.is_read:
            expected = f"numbers in {dimensions} dimensions are expected"
            self.fail(f"tensor {name[:200]} is {tensor.type.name} {tensor.shape}, {expected}")
        values = decoded(tensor.type, self.file.rows(name, 0, math.prod(tensor.shape[:-1]))).reshape(tensor.shape)
        if not np.isfinite(values).all():
            self.fail(f"tensor {name[:200]} holds a value that is not finite")
        return values

    def fail(self, why: str) -> NoReturn:
        raise AdapterError(f"{self.file.path}", why, OTHER_BASE)
