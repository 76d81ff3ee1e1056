"""The faces of a backend: it turns a loaded model into something that runs batches. The folder ``native/`` has one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from infeng_core.batch import AdapterHandle, Batch, Limits
from infeng_core.errors import KernelError

if TYPE_CHECKING:
    from infeng_core.formats.adapters.packed import PackedAdapter
    from infeng_core.formats.tensors import LoadedModel
    from infeng_core.kernels.choice import Selector
    from infeng_core.models.config import ModelConfig
    from infeng_core.settings.config import EngineConfig


class InterruptedStepError(KernelError):
    """A run was cancelled; it may run again."""


class NotFiniteError(KernelError):
    """An op met NaN or infinity and refused: the rows of some requests are at fault, and the others can run."""


@dataclass(frozen=True, slots=True)
class BoundOp:
    """One line of what runs: an op of the model, for a range of batch sizes, and the kernel that it got."""

    op: str
    """As in abi.h: "linear", "attention", ..."""
    detail: str
    """Which tensors, formats and sizes, such as "layers.*.qkv_proj int4-g64 2560x2048 x22"."""
    rows: tuple[int, int]
    """Batch sizes, in rows, that this kernel is used for."""
    library: str
    kernel: str
    reason: str


class Executable(Protocol):
    """A model that is ready to run. It owns the bytes of the key/value cache."""

    @property
    def kv_bytes(self) -> int:
        """Bytes of the key/value cache."""

    @property
    def scratch_bytes(self) -> int:
        """Bytes of activations and kernels' workspaces."""

    def run(self, batch: Batch) -> NDArray[np.float32]:
        """Run one step and return the sampled rows' logits, (samples, vocab) float32, valid until the next run.

        The keys and values of the batch's rows are in the cache afterwards. Running the same batch again is harmless.
        Raises KernelError if an op fails, NotFiniteError where that is because of what is in the rows.
        """

    @property
    def max_stacked_rank(self) -> int:
        """The most ``PackedAdapter.stacked_rank`` of the adapters of one row together; 0 without adapters."""

    def load_adapter(self, adapter: PackedAdapter) -> AdapterHandle:
        """Copy an adapter into memory of this executable, on any thread, while steps run.

        Batches name it in ``adapters``; its memory goes back when the last reference to the handle is dropped. Raises
        AdapterError for one that does not fit, ResourceError without memory and PluginError where a backend has no
        adapters.
        """

    def bound(self) -> Sequence[BoundOp]:
        """Return what runs, in the order of the model."""

    def cancel(self) -> None:
        """Make a run in flight on another thread stop soon, with InterruptedStepError; without one do nothing."""

    def close(self) -> None:
        """Give memory and threads back; the executable cannot run afterwards."""


@dataclass(frozen=True, slots=True)
class OpNames:
    """One op of a program."""

    op: str
    detail: str
    """As in BoundOp, without the number of layers."""
    kernels: tuple[str, ...]
    """"library/kernel" of each range of batch sizes."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What an executable measured of its own steps; times in nanoseconds of ``time.perf_counter_ns``.

    step_ns = head_ns + sum of wall_ns + tail_ns. The fields of the arrays are those of ``_native.ProfileReading``.
    """

    ops: tuple[OpNames, ...]
    steps: int
    rows: int
    step_ns: int
    head_ns: int
    tail_ns: int
    phases: NDArray[Any]  # (phases,) structured
    workers: NDArray[Any]  # (phases, threads) structured
    events: list[NDArray[Any]]  # of each worker, (events,) structured


@runtime_checkable
class Measurable(Protocol):
    """What an executable may offer besides: the time of every op."""

    def profile(self, on: bool, *, events: int = 65536) -> None:
        """Measure every step from now on, from zero, and keep the latest ``events`` of each worker; or stop."""

    def measured(self) -> Measured:
        """Return what was measured since ``profile(True)``; raises KernelError if nothing was."""


@runtime_checkable
class BlockAccess(Protocol):
    """What an executable may offer besides: the bytes of whole cache blocks, so that a prefix outlives the process.

    Each call waits for a step that runs on another thread. Raises KernelError for a block that does not exist and for
    arrays of another shape or type, before anything is written.
    """

    def block_layout(self) -> str:
        """Return what the bytes of a block mean. Blocks may move between executables of one model where it is equal."""

    def read_blocks(self, blocks: NDArray[np.int32]) -> NDArray[np.uint8]:
        """Return copies of blocks (count,), all layers of each: (count, block_bytes) uint8."""

    def write_blocks(self, blocks: NDArray[np.int32], data: NDArray[np.uint8]) -> None:
        """Write what ``read_blocks`` returned, (count, block_bytes) uint8, to blocks (count,), which may be others."""

    def copy_blocks(self, source: NDArray[np.int32], target: NDArray[np.int32]) -> None:
        """Copy source[i] onto target[i], both (count,), in this order: for one who goes on in a block that others read.

        Only the last block of a sequence needs it, where it is not full; full ones are shared as they are.
        """


@runtime_checkable
class HiddenStates(Protocol):
    """What an executable may offer besides: what the head reads of each row, not of the sampled ones alone."""

    @property
    def has_hidden_states(self) -> bool:
        """Whether the model ends in a norm and a head."""

    def hidden_states(self) -> NDArray[np.float32]:
        """Return the final norm's output of all rows of the last run, (rows, hidden) float32, valid until the next.

        Its batch must have had ``hidden``.
        """


class Backend(Protocol):
    """Makes executables. Registered by name through the hook ``infeng_backends``."""

    @property
    def uses_kernels(self) -> bool:
        """Whether kernels are to be chosen for it; where not, no kernel library is opened."""

    def block_bytes(self, shape: ModelConfig, config: EngineConfig) -> int:
        """Return the bytes of one block of the key/value cache, 16 positions in the layers of one group.

        There is one group of all layers, unless the backend also has ``block_windows(shape, config)``, which returns
        how far attention sees in each group that has blocks of its own, those that see all (0) first. Its executables
        then find the tables of further groups behind that of the first (``Batch.block_tables``), and -1 in those of
        groups with a window for blocks that lie before it.
        """

    def available_bytes(self) -> int | None:
        """Return the bytes that cache and adapters may still take where they will lie; None where it is not known."""

    def compile(
        self, model: LoadedModel, config: EngineConfig, limits: Limits, selector: Selector | None
    ) -> Executable:
        """Return ``model`` ready to run under ``limits``; raises KernelError where an op finds no kernel.

        selector: None where the backend uses no kernels.
        """
