"""What an engine would bind to the ops of a model, found out by its own planner without the model's weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from infeng_core import _native
from infeng_core.backends.native.binding import Binder
from infeng_core.backends.native.executable import plan
from infeng_core.batch import Limits
from infeng_core.errors import KernelError
from infeng_core.formats import checkpoints
from infeng_core.formats.artifacts.manifest import is_native, read_manifest
from infeng_core.formats.format_choice import choose
from infeng_core.formats.loader import find
from infeng_core.formats.providers import CORE, Providers, reader_of
from infeng_core.formats.quant import FormatLookup
from infeng_core.formats.tensors import LoadedModel, PackedTensor
from infeng_core.kernels.choice import Selector
from infeng_core.models.config import ModelConfig, RopeConfig
from infeng_core.models.weights import TensorSpec, layout
from infeng_core.settings.config import EngineConfig

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
"""The sizes of TinyLlama-1.1B, where no model is named."""


def shape_and_formats(
    reference: str | None, config: EngineConfig, lookup: FormatLookup, providers: Providers = CORE
) -> tuple[ModelConfig, Mapping[str, str]]:
    """Return the sizes of a model, TINYLLAMA where none is named, and the format that each tensor would have.

    A converted model has its own. Raises ModelError where the directory is none of a model.
    """
    shape = TINYLLAMA
    if reference is not None:
        directory = find(reference, providers)
        if is_native(directory):
            manifest = read_manifest(directory, lookup)
            return manifest.model, {name: entry.format for name, entry in manifest.tensors.items()}
        reader = partial(reader_of, providers=providers)
        return checkpoints.plan(directory, choose(config, lookup), lookup, reader)
    return shape, choose(config, lookup).for_model(shape, lookup)


@dataclass(frozen=True)
class Outline:
    """A model that is known by its sizes and formats alone, and the engine that it would run in.

    What asks for its kernels raises KernelError where an op finds none.
    """

    shape: ModelConfig
    formats: Mapping[str, str]
    """Of each tensor."""
    lookup: FormatLookup
    config: EngineConfig
    selector: Selector
    limits: Limits

    def bound(self) -> Binder:
        """Plan the model as the native backend would, and return what was bound."""
        return self._planned()[1]

    def scratch_bytes(self) -> int:
        """Return the bytes that the model's steps would work in, beside weights and cache; tables of positions count.

        Those that grow with the blocks of the cache, 4 each, are not among them.
        """
        try:
            program = self._planned()[0]
            program.finish()
        except _native.NativeError as error:
            raise KernelError(
                "the model", str(error), "infeng plugins why OP --model MODEL shows what was tried"
            ) from error
        return program.scratch_bytes

    def _planned(self) -> tuple[_native.Program, Binder]:
        """Return the program of a model without weights, which is not finished, and what was bound."""
        shape, config = self.shape, self.config
        cache = _native.KvCache(
            config.kv_cache.dtype, layers=shape.layers, blocks=1, kv_heads=shape.kv_heads, head_dim=shape.head_dim
        )  # at least as many layers as a group has
        model = _empty(shape, self.formats, self.lookup)
        pool = _native.Pool(self.selector.cpu.place(config.threads, model.nbytes).workers, spin_us=0)
        program, planner, _ = plan(model, config, replace(self.limits, kv_blocks=1), self.selector, pool, cache)
        return program, planner.binder


def _empty(shape: ModelConfig, formats: Mapping[str, str], lookup: FormatLookup) -> LoadedModel:
    """Return a model all of whose tensors are one piece of memory that nobody writes, so that it takes none."""
    specs = {spec.name: spec for spec in layout(shape).tensors}
    quants = {name: lookup(formats[name]) for name in specs}

    def nbytes(spec: TensorSpec) -> int:
        return spec.panels * quants[spec.name].panel_bytes(spec.k)

    vectors = {spec.name: spec.size for spec in layout(shape).vectors}
    most = max(*map(nbytes, specs.values()), *(4 * size for size in vectors.values()))
    memory = _native.Arena(most, huge_pages=False)
    tensors = {
        name: PackedTensor(
            name, formats[name], spec.n, spec.k, spec.panels, nbytes(spec) // spec.panels, memory, 0, quants[name]
        )
        for name, spec in specs.items()
    }
    # On a 64-byte boundary, as in a model: a program copies others.
    placed = {name: np.frombuffer(memoryview(memory), np.float32, size) for name, size in vectors.items()}
    total = sum(map(nbytes, specs.values()))
    return LoadedModel(shape, Path(), tensors, placed, Path(), formats, total, "")
