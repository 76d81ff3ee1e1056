"""The kernels that an engine would bind to a model's ops, planned without the model's weights."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from infeng_core.api import EngineConfig, KernelError
from infeng_core.api.engines import Limits
from infeng_core.api.formats import (
    Core,
    FormatLookup,
    LoadedModel,
    ModelConfig,
    PackedTensor,
    Providers,
    RopeConfig,
    TensorSpec,
    choose,
    converter_of,
    find,
    is_native,
    layout,
    read_manifest,
)
from infeng_core.api.kernels import Binder, Selector, native, plan

TINYLLAMA = ModelConfig(
    family="llama",
    hidden=2048,
    intermediate=5632,
    layers=22,
    heads=32,
    kv_heads=4,
    head_dim=64,
    vocab=32000,
    max_positions=2048,
    rms_eps=1e-5,
    rope=RopeConfig(theta=10000.0),
)
"""The sizes of TinyLlama-1.1B, used if no model is named."""


def shape_and_formats(
    reference: str | None, config: EngineConfig, lookup: FormatLookup, providers: Providers | None = None
) -> tuple[ModelConfig, Mapping[str, str]]:
    """Return the sizes of a model (TINYLLAMA if none is named) and the format that each tensor would have.

    A converted model keeps its own formats. Raises ModelError if the directory holds no model.
    """
    shape, providers = TINYLLAMA, providers or Core()
    if reference is not None:
        directory = find(reference, providers)
        if is_native(directory):
            manifest = read_manifest(directory, lookup)
            return manifest.model, {name: entry.format for name, entry in manifest.tensors.items()}
        return converter_of(directory, config, providers).outline(directory)
    return shape, choose(config, lookup).for_model(shape, lookup)


@dataclass(frozen=True)
class Outline:
    """A model known by its sizes and formats alone, and the engine that it would run in.

    Methods that bind kernels raise KernelError for an op without a kernel.
    """

    shape: ModelConfig
    formats: Mapping[str, str]
    """Of each tensor."""
    lookup: FormatLookup
    config: EngineConfig
    selector: Selector
    limits: Limits

    def bound(self) -> Binder:
        """Plan the model as the native backend would, and return the binder."""
        return self._planned()[1]

    def scratch_bytes(self) -> int:
        """Return the bytes of the buffers of a model's steps, besides weights and cache; tables of positions count.

        Block tables, 4 bytes for each cache block, do not count.
        """
        try:
            program = self._planned()[0]
            program.finish()
        except native.NativeError as error:
            raise KernelError(
                "the model", str(error), "infeng plugins why OP --model MODEL shows what was tried"
            ) from error
        return program.scratch_bytes

    def _planned(self) -> tuple[native.Program, Binder]:
        """Return the unfinished program of a model without weights, and the binder."""
        shape, config = self.shape, self.config
        # At least the number of layers of a group.
        cache = native.KvCache(config.kv_cache.dtype, layers=shape.layers, blocks=1, **shape.cache_heads)
        model = _empty(shape, self.formats, self.lookup)
        pool = native.Pool(self.selector.cpu.place(config.threads, model.nbytes).workers, spin_us=0)
        program, planner, _ = plan(model, config, replace(self.limits, kv_blocks=1), self.selector, pool, cache)
        return program, planner.binder


def _empty(shape: ModelConfig, formats: Mapping[str, str], lookup: FormatLookup) -> LoadedModel:
    """Return a model whose tensors all share one piece of memory that is never written, so that it takes no pages."""
    specs = {spec.name: spec for spec in layout(shape).tensors}
    quants = {name: lookup(formats[name]) for name in specs}

    def nbytes(spec: TensorSpec) -> int:
        return spec.panels * quants[spec.name].panel_bytes(spec.k)

    vectors = {spec.name: spec.size for spec in layout(shape).vectors}
    most = max(*map(nbytes, specs.values()), *(4 * size for size in vectors.values()))
    memory = native.Arena(most, huge_pages=False)
    tensors = {
        name: PackedTensor(
            name, formats[name], spec.n, spec.k, spec.panels, nbytes(spec) // spec.panels, memory, 0, quants[name]
        )
        for name, spec in specs.items()
    }
    # On a 64-byte boundary, as in a model: a program copies unaligned arrays.
    placed = {name: np.frombuffer(memoryview(memory), np.float32, size) for name, size in vectors.items()}
    total = sum(map(nbytes, specs.values()))
    return LoadedModel(shape, Path(), tensors, placed, Path(), formats, total, "")


def by_format(formats: Mapping[str, str]) -> dict[str, list[str]]:
    """Return {format: names of its tensors} for {name: format}.

    A tensor with the same format in every layer is listed as ``layers.*.down_proj``.
    """
    in_layers: dict[str, set[str]] = {}
    for name, format in formats.items():
        in_layers.setdefault(_in_any_layer(name), set()).add(format)
    found: dict[str, list[str]] = {}
    for name, format in formats.items():
        shown = _in_any_layer(name)
        names = found.setdefault(format, [])
        if len(in_layers[shown]) > 1:
            names.append(name)
        elif shown not in names:
            names.append(shown)
    return found


def _in_any_layer(name: str) -> str:
    return re.sub(r"^layers\.\d+\.", "layers.*.", name)
