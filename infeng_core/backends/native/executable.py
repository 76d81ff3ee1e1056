"""The ``native`` backend: a planned program, the worker pool and the key/value cache of the native core."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from infeng_core import _native
from infeng_core.backends.interface import BoundOp, InterruptedStepError, Measured, NotFiniteError, OpNames
from infeng_core.backends.native.adapters import place
from infeng_core.backends.native.plan import Planner, heads_text
from infeng_core.backends.native.split import HostExperts, Split
from infeng_core.batch import Batch, Limits
from infeng_core.errors import AdapterError, KernelError, ModelError, ResourceError
from infeng_core.kernels.problems import MAX_STACKED_RANK
from infeng_core.machine import placement
from infeng_core.machine.memory import LOCK_REMEDY, available_bytes
from infeng_core.models.families import families
from infeng_core.models.groups import LayerGroup, layer_groups, one_group, places
from infeng_core.models.rope import variant

if TYPE_CHECKING:
    from infeng_core.formats.adapters.packed import PackedAdapter
    from infeng_core.formats.tensors import LoadedModel
    from infeng_core.kernels.choice import Selector
    from infeng_core.models.config import ModelConfig
    from infeng_core.models.ops import Graph
    from infeng_core.settings.config import EngineConfig

_REMEDIES = {
    "out_of_memory": "set kv_cache.memory, scheduler.max_batch_tokens or threads.count to less",
    "out_of_threads": "set threads.count to less, or raise the limit of processes and threads (ulimit -u)",
    "lock_refused": LOCK_REMEDY,
}
"""The remedy where memory, threads or locks are refused, by the code of the native error."""


BLOCK_LAYOUT = 1
"""The version of the cache's memory layout (native/program/kv_cache.cc and the kernels that write it)."""


class NativeBackend:
    """Compiles a model's graph to a program of the native core."""

    uses_kernels = True

    def block_bytes(self, shape: ModelConfig, config: EngineConfig) -> int:
        """Return the bytes of one block of the cache in the layers of one group.

        Raises KernelError for heads that the cache cannot hold.
        """
        sizes = {"layers": places(_groups(shape, config)), **shape.cache_heads}
        try:
            return _native.KvCache.bytes_per_block(config.kv_cache.dtype, **sizes)
        except _native.NativeError as error:
            if error.code != "unsupported":
                raise
            raise KernelError("kv_cache.dtype", str(error), "set it to int8, f16 or f32") from error

    def block_windows(self, shape: ModelConfig, config: EngineConfig) -> tuple[int, ...]:
        """Return the attention window of each group of layers with blocks of its own; 0: all."""
        return tuple(group.window for group in _groups(shape, config))

    def available_bytes(self) -> int | None:
        """Return the bytes that the machine and the control groups leave free."""
        return available_bytes()

    def compile(
        self, model: LoadedModel, config: EngineConfig, limits: Limits, selector: Selector | None
    ) -> NativeExecutable:
        """Return ``model`` ready to run under ``limits``; raises KernelError where an op finds no kernel."""
        assert selector is not None  # uses_kernels is true
        split = self.split(config) if model.config.experts else None
        host = None if split is None else HostExperts(split, selector.of_host())
        try:
            return NativeExecutable(model, config, limits, selector, host)
        except _native.NativeError as error:
            kind = ResourceError if error.code in _REMEDIES else KernelError
            raise kind(f"model {model.source}", str(error), _REMEDIES.get(error.code, "")) from error
        finally:
            if host is not None:
                host.selector.report()
                host.selector.close()

    def split(self, config: EngineConfig) -> Split | None:
        """Return how the experts of a mixture are divided between the backend's device and the host; None: all of them
        are where the other ops are."""
        return None


def _groups(shape: ModelConfig, config: EngineConfig) -> tuple[LayerGroup, ...]:
    """Return the groups of layers that share blocks; one group if prefixes are saved, which hold all layers."""
    is_whole = not config.kv_cache.windows or config.kv_cache.prefix_dir is not None
    return one_group(shape.layers) if is_whole else layer_groups(shape)


def plan(
    model: LoadedModel,
    config: EngineConfig,
    limits: Limits,
    selector: Selector,
    pool: _native.Pool,
    cache: _native.KvCache,
    pages: _native.Pages | None = None,
    graph: Graph | None = None,
    kept: Collection[str] = (),
    host: HostExperts | None = None,
) -> tuple[_native.Program, Planner, int]:
    """Return an unfinished program with every op bound, its planner and the buffer of the logits.

    graph: replaces the graph of the model's family; its inputs lie in their buffers. kept: values to read after a run,
    besides the logits. host: computes some of the experts of a program on a device.
    """
    if graph is None:
        graph = families()[model.config.family].graph(model.config)
        if graph.inputs:
            why = f"its graph takes {', '.join(graph.inputs)} from its caller, and an engine writes no values"
            raise ModelError(f"family {model.config.family}", why, "let an op write them")
    groups = layer_groups(model.config) if any(limits.windows) else one_group(model.config.layers)
    dtype = config.adapters.dtype if config.adapters.max_resident else None
    while True:
        program = _native.Program(
            pool,
            max_rows=limits.max_rows,
            max_samples=limits.max_samples,
            max_segments=limits.max_segments,
            context=limits.context,
            tables=len(groups),
            pages=pages or _native.Pages(),
            device=selector.device,
        )
        planner = Planner(model, graph, limits, selector, pool.threads, dtype, kept, groups, host)
        logits = planner.build(program, cache, config.kv_cache.dtype)
        if not planner.is_outdated:
            return program, planner, logits


class NativeExecutable:
    """A program with its pool, cache and memory. It runs one step at a time; ``cancel`` may come from another
    thread."""

    def __init__(
        self,
        model: LoadedModel,
        config: EngineConfig,
        limits: Limits,
        selector: Selector,
        host: HostExperts | None = None,
    ) -> None:
        """Start threads, take memory and bind every op; ``host``: computes some of the experts of a device."""
        shape = model.config
        cpu, device = selector.cpu, selector.device
        where = cpu.place(config.threads, model.nbytes)
        if device is None or host is not None:
            pool = _native.Pool(where.workers, pin=where.pinned, cpus=where.mask, nice=config.threads.nice)
        else:
            pool = _native.Pool(1)  # which queues a device's kernels
        pages = placement.pages(config.memory, cpu.topology, where)
        self._model = model  # keeps the weights' memory alive
        layers = places(layer_groups(shape)) if any(limits.windows) else shape.layers
        self._cache = _native.KvCache(
            config.kv_cache.dtype,
            layers=layers,
            blocks=limits.kv_blocks,
            pages=pages,
            device=device,
            **shape.cache_heads,
        )
        placement.report(self._cache.place_error)
        self._dtype = config.adapters.dtype if config.adapters.max_resident else None
        self._program, planner, logits = plan(model, config, limits, selector, pool, self._cache, pages, host=host)
        self._is_split = host is not None
        self._program.finish()
        self._head_norms = planner.head_norms
        self._buffers = logits, planner.hidden
        self._logits = self._program.view(logits, fetched=True)[:, : shape.vocab]
        hidden = planner.hidden
        self._hidden = None if hidden is None else self._program.view(hidden, fetched=True)[:, : shape.hidden]
        self._rows = 0  # of the last run
        self._bound = planner.binder.bound_ops()
        self._ops = tuple(
            OpNames(op, detail, tuple(kernel for _, kernel in native.kernels))
            for (op, detail), native in zip(planner.binder.noted, self._program.ops(), strict=True)
        )
        self.kv_bytes = self._cache.nbytes
        sizes = f"{layers} layers, {heads_text(**shape.cache_heads)}"
        revision = "" if _native.NUMERICS == 1 else f", numerics {_native.NUMERICS}"
        self._layout = f"native {BLOCK_LAYOUT}: {config.kv_cache.dtype}, {sizes}{revision}"
        if rope := variant(shape.rope, limits.context):
            self._layout += f", {rope}"
        self.scratch_bytes = self._program.scratch_bytes

    def run(self, batch: Batch) -> NDArray[np.float32]:
        """Run one step; return (samples, vocab) float32, valid until the next run."""
        try:
            self._program.run(*batch[1:8])  # without ``draws``, which the host does
        except _native.NativeError as error:
            raise _failure(error) from error
        self._rows = len(batch.tokens)
        self._program.fetch(self._buffers[0], len(batch.sample_rows))
        return self._logits[: len(batch.sample_rows)]

    @property
    def has_hidden_states(self) -> bool:
        """Whether the model ends in a norm and a head."""
        return self._hidden is not None

    def hidden_states(self) -> NDArray[np.float32]:
        """Return the head's input of all rows of the last run, (rows, hidden) float32, valid until the next."""
        assert self._hidden is not None and self._buffers[1] is not None  # has_hidden_states is true
        self._program.fetch(self._buffers[1], self._rows)
        return self._hidden[: self._rows]

    @property
    def max_stacked_rank(self) -> int:
        """The most stacked rank rows of the adapters of one row together."""
        return MAX_STACKED_RANK if self._dtype else 0

    def load_adapter(self, adapter: PackedAdapter) -> _native.Adapter:
        """Copy an adapter into memory of its own; raises AdapterError or ResourceError."""
        what = f"adapter {adapter.source}"
        if self._dtype is None:
            raise AdapterError(what, "the engine was made without adapters", "set adapters.max_resident above 0")
        if adapter.base != self._model.id:
            why = f"it was packed for the base {adapter.base[:12]}, this one is {self._model.id[:12]}"
            raise AdapterError(what, why, "load it again for this model")
        if adapter.dtype != self._dtype:
            why = f"it is stored as {adapter.dtype}, the engine's adapters as {self._dtype}"
            raise AdapterError(what, why, f"load it with dtype {self._dtype}, or set adapters.dtype")
        if self._is_split and any("[" in name for name in adapter.tensors):
            why = "it changes experts, which are computed on two sides here"
            raise AdapterError(what, why, "let one side compute all of them: cuda.experts: gpu")
        try:
            return place(self._program, adapter, self._head_norms)
        except _native.NativeError as error:
            if error.code == "out_of_memory":
                raise ResourceError(what, str(error), "unload another adapter") from error
            if error.code == "lock_refused":
                raise ResourceError(what, str(error), LOCK_REMEDY) from error
            raise AdapterError(what, str(error), "it does not fit this model; convert it again") from error

    def experts_chosen(self, *, on_device: bool) -> int:
        """Return how many experts one side has computed so far, in all layers and steps; 0 where nothing is split."""
        return self._program.experts_chosen(on_device=on_device)

    def block_layout(self) -> str:
        """Return a name of the blocks' byte layout."""
        return self._layout

    def read_blocks(self, blocks: NDArray[np.int32]) -> NDArray[np.uint8]:
        """Return copies of whole blocks, (count, block_bytes) uint8."""
        with _cache_errors():
            return self._program.read_blocks(self._cache, blocks)

    def write_blocks(self, blocks: NDArray[np.int32], data: NDArray[np.uint8]) -> None:
        """Write the result of ``read_blocks`` to blocks."""
        with _cache_errors():
            self._program.write_blocks(self._cache, blocks, data)

    def copy_blocks(self, source: NDArray[np.int32], target: NDArray[np.int32]) -> None:
        """Copy whole blocks onto others."""
        with _cache_errors():
            self._program.copy_blocks(self._cache, source, target)

    def bound(self) -> list[BoundOp]:
        """Return the bound ops in the order of the model."""
        return self._bound

    def cancel(self) -> None:
        """Make a run in flight on another thread stop between two tiles."""
        self._program.cancel()

    def profile(self, on: bool, *, events: int = 65536) -> None:
        """Start to measure every step from zero, keeping the latest ``events`` of each worker; or, with False, stop."""
        # Equal ops of all layers share their totals.
        first: dict[OpNames, int] = {}
        groups = [first.setdefault(names, index) for index, names in enumerate(self._ops)]
        self._program.profile(on, events=events, groups=groups)

    def measured(self) -> Measured:
        """Return the measurements since ``profile(True)``; raises KernelError if there are none."""
        if not hasattr(self, "_program"):
            raise KernelError("profile", "the engine is closed", "end the profile first")
        try:
            return Measured(self._ops, *self._program.profile_read())
        except _native.NativeError as error:
            raise KernelError("profile", str(error), "call profile(True) before the steps") from error

    def close(self) -> None:
        """Free memory and end threads; a second call does nothing."""
        for name in ("_program", "_cache", "_logits", "_hidden", "_model"):
            vars(self).pop(name, None)


@contextlib.contextmanager
def _cache_errors() -> Iterator[None]:
    try:
        yield
    except _native.NativeError as error:
        raise KernelError("kv cache", str(error), "use blocks of this engine's pool") from error


def _failure(error: _native.NativeError) -> KernelError:
    """Return the error of a step that failed below Python."""
    if error.code == "cancelled":
        return InterruptedStepError("step", "it was interrupted", "run it again")
    if error.code == "forked":
        return KernelError("step", str(error))  # the text has the remedy
    kind = NotFiniteError if error.code == "not_finite" else KernelError
    return kind("step", str(error), "infeng doctor shows the kernels; kernels.disable avoids one")
