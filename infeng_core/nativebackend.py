"""The ``native`` backend: a planned program, the worker pool and the key/value cache of the native core."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from infeng_core import _native
from infeng_core.backend import BoundOp, Limits, Measured, OpNames
from infeng_core.errors import KernelError
from infeng_core.models.families import families
from infeng_core.plan import Planner
from infeng_core.scheduler import Batch

if TYPE_CHECKING:
    from infeng_core.formats import LoadedModel
    from infeng_core.plug.manifest import EngineConfig
    from infeng_core.plug.select import Selector


class NativeBackend:
    """Compiles a model's graph to a program of the native core."""

    def compile(self, model: LoadedModel, config: EngineConfig, limits: Limits, selector: Selector) -> NativeExecutable:
        """Return ``model`` ready to run under ``limits``; raises KernelError where an op finds no kernel."""
        return NativeExecutable(model, config, limits, selector)


class NativeExecutable:
    """A program with what it runs on. One step at a time; ``cancel`` may come from another thread."""

    def __init__(self, model: LoadedModel, config: EngineConfig, limits: Limits, selector: Selector) -> None:
        """Take threads and memory and bind every op."""
        shape = model.config
        cpu = selector.cpu
        workers = cpu.workers(config.threads.count)
        pool = _native.Pool(workers, pin=cpu.pins(config.threads.pin, workers))
        self._model = model  # the weights' memory
        self._cache = _native.KvCache(
            config.kv_cache.dtype,
            layers=shape.layers,
            blocks=limits.kv_blocks,
            kv_heads=shape.kv_heads,
            head_dim=shape.head_dim,
        )
        self._program = _native.Program(
            pool,
            max_rows=limits.max_rows,
            max_samples=limits.max_samples,
            max_segments=limits.max_segments,
            context=limits.context,
        )
        planner = Planner(model, families()[shape.family].graph(shape), limits, selector, pool.threads)
        logits = planner.build(self._program, self._cache, config.kv_cache.dtype)
        self._program.finish()
        self._logits = self._program.view(logits)[:, : shape.vocab]
        self._bound = planner.binder.bound_ops()
        self._ops = tuple(
            OpNames(op, detail, tuple(kernel for _, kernel in native["kernels"]))
            for (op, detail), native in zip(planner.binder.noted, self._program.ops(), strict=True)
        )
        self.kv_bytes = self._cache.nbytes
        self.scratch_bytes = self._program.scratch_bytes

    def run(self, batch: Batch) -> NDArray[np.float32]:
        """Run one step; return (samples, vocab) float32, valid until the next run."""
        try:
            self._program.run(batch.tokens, batch.positions, batch.kv_segments, batch.block_tables, batch.sample_rows)
        except _native.NativeError as error:
            raise KernelError(
                "step", str(error), "infeng doctor shows the kernels; kernels.disable avoids one"
            ) from error
        return self._logits[: len(batch.sample_rows)]

    def bound(self) -> list[BoundOp]:
        """Return what runs, in the order of the model."""
        return self._bound

    def cancel(self) -> None:
        """Make a run in flight on another thread stop between two tiles."""
        self._program.cancel()

    def profile(self, on: bool, *, events: int = 65536) -> None:
        """Measure every step from now on, from zero, and keep the latest ``events`` of each worker; or stop."""
        # Equal ops of all layers share their totals.
        first: dict[OpNames, int] = {}
        groups = [first.setdefault(names, index) for index, names in enumerate(self._ops)]
        self._program.profile(on, events=events, groups=groups)

    def measured(self) -> Measured:
        """Return what was measured since ``profile(True)``; raises KernelError if nothing was."""
        if not hasattr(self, "_program"):
            raise KernelError("profile", "the engine is closed", "end the profile first")
        try:
            return Measured(self._ops, **self._program.profile_read())
        except _native.NativeError as error:
            raise KernelError("profile", str(error), "call profile(True) before the steps") from error

    def close(self) -> None:
        """Give memory and threads back."""
        del self._program, self._cache, self._logits, self._model
