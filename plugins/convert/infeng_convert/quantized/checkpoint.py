"""A Hugging Face directory with quantized weights as a checkpoint."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from infeng_convert.hfcheckpoint import FloatCheckpoint
from infeng_convert.interfaces.quantizers import Kept, Quantized
from infeng_convert.quantized import storage
from infeng_convert.quantized.blocks import Blocks
from infeng_convert.quantized.columns import Columns
from infeng_convert.quantized.module import Integers, Module
from infeng_convert.quantized.raw import FLOATS, MISMATCH, Raw
from infeng_convert.quantized.rows import SCALES, Rows, floats
from infeng_convert.quantized.scheme import Scheme
from infeng_core.api.formats import FormatChoice, FormatLookup, ModelConfig, Part, QuantFormat

WEIGHT = ".weight"
HEAD = "lm_head.weight"
PARTS = ("qweight", "qzeros", "scales", "g_idx", "weight_packed", "weight_shape", "weight_zero_point", "weight_g_idx")
"""Suffixes of a quantized module's tensors, besides SCALES."""

ACTIVATIONS = re.compile(r"\.([qkv]|input|output)_(scale|zero_point)$")
"""Suffixes of tensors for activations and cache, which this engine quantizes in its own way."""


class QuantizedCheckpoint(FloatCheckpoint):
    """An opened directory with a ``quantization_config``. Modules with float weights are read as in other
    directories."""

    def __init__(self, directory: Path, scheme: Scheme) -> None:
        """Open every file and check the presence, type and shape of all tensors; raises ModelError."""
        self.scheme = scheme
        self._modules: dict[str, Module] = {}
        self._below: dict[tuple[str, int], int] = {}  # codes of -128 that became -127, by name and first row
        self._small: dict[tuple[str, int], int] = {}  # weights below the least fp16 scale, likewise
        super().__init__(directory)

    def array(self, part: Part) -> NDArray[Any]:
        """Return the rows of ``part``; a quantized weight as its float32 values."""
        module = self._modules.get(self.name(part))
        if isinstance(module, Blocks):
            return module.read(part.span)
        return super().array(part) if module is None else module.values(part.begin, part.rows)

    def kept(self, part: Part, format: QuantFormat) -> Kept | None:
        """Return the checkpoint's own codes and scales if ``format`` stores them unchanged; else None."""
        name = self.name(part)
        module = self._modules.get(name)
        if module is None or not storage.fits(module, format):
            return None
        if isinstance(module, Blocks):
            return self._kept_blocks(name, module, part)
        assert isinstance(module, Integers)
        if format.minima is not None:
            return storage.kept_minima(module, format.minima, part.begin, part.rows)
        grid = format.grid(module.k)
        assert grid is not None
        found, self._below[name, part.begin] = storage.kept(module, grid, part.begin, part.rows)
        return found

    def _kept_blocks(self, name: str, module: Blocks, part: Part) -> Quantized | None:
        kept = module.kept(part.span)
        if kept is None:
            return None
        found, self._small[name, part.begin] = kept
        return found

    def formats(self, choice: FormatChoice, lookup: FormatLookup) -> dict[str, str]:
        """Return the weight format of every tensor: the requested one, else one that keeps the file's precision."""
        return storage.formats(self.layout, self._by_tensor(), choice, lookup)

    def changes(self, formats: Mapping[str, str]) -> dict[str, str]:
        """Return a summary of tensors that are rounded again; weights changed in ``kept`` are included once it has
        run."""
        found = storage.changes(self.layout, self._by_tensor(), formats)
        for change, each in (("code -128 -> -127", self._below), ("MXFP4 -> multiples of 2^-24", self._small)):
            if count := sum(each.values()):
                found[change] = f"{count} weight{'s' if count > 1 else ''}"
        return found

    def stored(self) -> dict[str, int]:
        """Return the number of tensors of each type; a quantized weight with all of its tensors counts as one."""
        own = {tensor for name in self._modules for tensor in self._belonging(name)}
        plain = Counter(self.where[name].tensors[self.stored_as(name)].dtype for name in self.where if name not in own)
        quantized = Counter(module.label for module in self._modules.values())
        return dict(quantized) | dict(plain)

    @property
    def largest(self) -> int:
        """Bytes of the largest tensor as ``array`` returns it, with its codes."""
        return max([super().largest, *(module.room for module in self._modules.values())])

    def place(self, part: Part) -> str:
        """Return "file: tensor name" for errors."""
        module = self._modules.get(self.name(part))
        return super().place(part) if module is None else module.raw.place(module.main)

    def _as_stored(self, config: ModelConfig) -> ModelConfig:
        """Return the config corrected by the weights: a quantized head is not tied to float embeddings."""
        config = super()._as_stored(config)
        if config.tie_embeddings and self._is_quantized(HEAD):
            return replace(config, tie_embeddings=False)
        return config

    def _known(self) -> set[str]:
        """Return every name that the file may contain, including tensors of quantized weights and zero biases."""
        extra = {tensor for name in self._modules for tensor in self._belonging(name)}
        extra |= {name for name in self.where if ACTIVATIONS.search(name)}
        extra |= {bias for name in self._modules if self._is_zero(bias := f"{_module(name)}.bias")}
        return super()._known() | extra

    def _check_part(self, part: Part, k: int = 0) -> None:
        name = self.name(part)
        if not k or not self._is_quantized(name):
            super()._check_part(part, k)
        elif name not in self._modules:
            self._modules[name] = self._opened(name, part, k)

    def _opened(self, name: str, part: Part, k: int) -> Module:
        raw, module, n = Raw(self.where, self.stored_as), _module(name), part.source_rows
        if self.scheme.has_blocks:
            return Blocks(raw, name, n, k, part.each or n)
        if self.scheme.words:
            return Columns(raw, module, n, k, self.scheme)
        if self._is_fp8(name):
            return floats(raw, module, n, k, self.scheme)
        return Rows(raw, module, n, k, self.scheme)

    def _is_quantized(self, name: str) -> bool:
        module = _module(name)
        if self.scheme.has_blocks:
            return f"{name}_blocks" in self.where
        if self.scheme.words:
            return f"{module}.qweight" in self.where
        if f"{module}.weight_packed" in self.where:
            return True
        return name in self.where and (self._is_fp8(name) or self._dtype(name) == "I8")

    def _is_fp8(self, name: str) -> bool:
        return name in self.where and self._dtype(name) == "F8_E4M3"

    def _dtype(self, name: str) -> str:
        return self.where[name].tensors[self.stored_as(name)].dtype

    def _is_zero(self, name: str) -> bool:
        """Return whether a bias that the family lacks is zero, as AutoGPTQ wrote them."""
        if name not in self.where or name in super()._known():
            return False
        raw = Raw(self.where, self.stored_as)
        if raw.dtype(name) not in FLOATS or np.any(raw.floats(name)):
            raw.fail(name, "has no place in this model, and is not zero", MISMATCH)
        return True

    def _belonging(self, name: str) -> set[str]:
        """Return the tensors that may make up a quantized weight."""
        return {name, f"{name}_blocks", f"{name}_scales", *(f"{_module(name)}.{part}" for part in (*PARTS, *SCALES))}

    def _by_tensor(self) -> dict[str, list[Module | None]]:
        return {spec.name: [self._modules.get(self.name(part)) for part in spec.parts] for spec in self.layout.tensors}


def _module(name: str) -> str:
    return name.removesuffix(WEIGHT)
