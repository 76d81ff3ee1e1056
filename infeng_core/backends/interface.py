"""The interfaces of a backend, which turns a loaded model into an executable; ``native/`` implements one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from infeng_core.batch import AdapterHandle, Batch, Limits
from infeng_core.errors import KernelError
from infeng_core.record import Record

if TYPE_CHECKING:
    from infeng_core.formats.adapters.packed import PackedAdapter
    from infeng_core.formats.tensors import LoadedModel
    from infeng_core.kernels.choice import Selector
    from infeng_core.models.config import ModelConfig
    from infeng_core.requests.request import SamplingParams
    from infeng_core.settings.config import EngineConfig


class InterruptedStepError(KernelError):
    """A run was cancelled; the same batch may run again."""


class NotFiniteError(KernelError):
    """An op refused NaN or infinity: the rows of some requests are at fault, and the other requests can run."""


class BoundOp(Record):
    """A line of the bound program: an op of the model, for a range of batch sizes, and its kernel."""

    op: str
    """As in abi.h: "linear", "attention", ..."""
    detail: str
    """Which tensors, formats and sizes, such as "layers.*.qkv_proj int4-g64 2560x2048 x22"."""
    rows: tuple[int, int]
    """Batch sizes, in rows, that the kernel serves."""
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
        Raises KernelError if an op fails, NotFiniteError if values in the rows are not finite.
        """

    @property
    def max_stacked_rank(self) -> int:
        """The most ``PackedAdapter.stacked_rank`` of the adapters of one row together; 0 without adapters."""

    def load_adapter(self, adapter: PackedAdapter) -> AdapterHandle:
        """Copy an adapter into memory of this executable, on any thread, while steps run.

        Batches name it in ``adapters``; its memory is freed when the last reference to the handle is dropped. Raises
        AdapterError for one that does not fit, ResourceError without memory and PluginError where a backend has no
        adapters.
        """

    def bound(self) -> Sequence[BoundOp]:
        """Return the bound ops in the order of the model."""

    def cancel(self) -> None:
        """Make a run in flight on another thread stop soon, with InterruptedStepError; do nothing if none is in
        flight."""

    def close(self) -> None:
        """Free memory and end threads; the executable cannot run afterwards."""


class OpNames(Record):
    """One op of a program."""

    op: str
    detail: str
    """As in BoundOp, without the number of layers."""
    kernels: tuple[str, ...]
    """"library/kernel" of each range of batch sizes."""


class Measured(Record):
    """Measurements of an executable's own steps; times in nanoseconds of ``time.perf_counter_ns``.

    step_ns = head_ns + sum of wall_ns + tail_ns. The arrays have the fields of ``_native.ProfileReading``.
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
    """Optional interface of an executable: the time of every op."""

    def profile(self, on: bool, *, events: int = 65536) -> None:
        """Start to measure every step from zero, keeping the latest ``events`` of each worker; or, with False, stop."""

    def measured(self) -> Measured:
        """Return the measurements since ``profile(True)``; raises KernelError if there are none."""


@runtime_checkable
class BlockAccess(Protocol):
    """Optional interface of an executable: the bytes of whole cache blocks, so that a prefix outlives the process.

    Each call waits for a step that runs on another thread. Raises KernelError for a block that does not exist and for
    arrays of another shape or type, before anything is written.
    """

    def block_layout(self) -> str:
        """Return a name of the blocks' byte layout. Blocks may move between executables of one model with equal
        names."""

    def read_blocks(self, blocks: NDArray[np.int32]) -> NDArray[np.uint8]:
        """Return copies of blocks (count,), all layers of each: (count, block_bytes) uint8."""

    def write_blocks(self, blocks: NDArray[np.int32], data: NDArray[np.uint8]) -> None:
        """Write the result of ``read_blocks``, (count, block_bytes) uint8, to blocks (count,), perhaps other ones."""

    def copy_blocks(self, source: NDArray[np.int32], target: NDArray[np.int32]) -> None:
        """Copy source[i] onto target[i], both (count,), in this order, for a sequence that extends a shared block.

        Only the last block of a sequence needs it, where it is not full; full blocks are shared as they are.
        """


@runtime_checkable
class HiddenStates(Protocol):
    """Optional interface of an executable: the final hidden states of every row, not of the sampled rows alone."""

    @property
    def has_hidden_states(self) -> bool:
        """Whether the model ends in a norm and a head."""

    def hidden_states(self) -> NDArray[np.float32]:
        """Return the final norm's output of all rows of the last run, (rows, hidden) float32, valid until the next.

        The batch of that run must have set ``hidden``.
        """


@runtime_checkable
class DeviceSampling(Protocol):
    """Optional interface of an executable: it draws tokens itself, equal to those that the host would draw.

    The rows of one batch may be divided: ``Batch.draws`` names the rows that the executable draws from, and the host
    draws from the others. The host keeps rows with logit processors, and rows whose logits or log-probabilities are
    reported.
    """

    def samples(self, params: SamplingParams) -> bool:
        """Return whether it draws the tokens of requests with these parameters, always the same for equal ones.

        Filters act in the order of the setting ``sampling.order``.
        """

    def sampled(self) -> NDArray[np.int32]:
        """Return the tokens of the last run's ``draws``, (draws,) int32, valid until the next run.

        NOT_FINITE stands for a row that holds NaN or infinity. The logits of these rows, which the run returns with
        the others, may hold any values.
        """


@runtime_checkable
class AsynchronousRuns(Protocol):
    """Optional interface of an executable: a step is started, and the host works on while the device computes.

    The engine starts a batch at the end of a step and finishes it at the beginning of the next, so at most one runs.
    In between, results reach their callers and requests are accepted. ``cancel`` stops a batch that was started.
    """

    def start(self, batch: Batch) -> Any:
        """Start a step and return a handle for ``finish``; raises KernelError.

        The arrays of the batch are read before it returns, and its adapters are kept until the step is over. A step
        that was started and never finished, because Ctrl-C came between, ends before this one begins.
        """

    def finish(self, handle: Any) -> NDArray[np.float32]:
        """Wait for a started step and return what ``run`` would return, or raise what ``run`` would raise.

        After Ctrl-C it is called again with the same handle, and gives the same result.
        """


@runtime_checkable
class StreamedWeights(Protocol):
    """Optional interface of a backend: it takes the weights one at a time while the files are read.

    Its ``compile`` iterates over ``LoadedModel.weights()``. The tensors of the model itself are then mapped files, of
    which only those parts are read that are used, such as the embedding under an adapter.
    """

    @property
    def streams_weights(self) -> bool:
        """Whether models are prepared for it in this way."""


class Backend(Protocol):
    """Makes executables. Registered by name through the hook ``infeng_backends``."""

    @property
    def uses_kernels(self) -> bool:
        """Whether the backend uses kernels; if not, no kernel library is opened.

        A backend may also have ``device(config)``, which returns the name of the library on whose device its kernels
        compute; without it, they compute on the host.
        """

    def block_bytes(self, shape: ModelConfig, config: EngineConfig) -> int:
        """Return the bytes of one block of the key/value cache, 16 positions in the layers of one group.

        There is one group of all layers, unless the backend also has ``block_windows(shape, config)``, which returns
        the attention window of each group with blocks of its own, groups with full attention (0) first. Its
        executables then find the tables of further groups behind the table of the first (``Batch.block_tables``). In
        groups with a window, -1 stands for blocks before the window.
        """

    def available_bytes(self) -> int | None:
        """Return the bytes that cache and adapters may still take in the memory chosen for them; None if unknown."""

    def compile(
        self, model: LoadedModel, config: EngineConfig, limits: Limits, selector: Selector | None
    ) -> Executable:
        """Return ``model`` ready to run under ``limits``; raises KernelError where an op finds no kernel.

        selector: None where the backend uses no kernels.
        """


def device_of(backend: Backend, config: EngineConfig) -> str | None:
    """Return the library on whose device the kernels of ``backend`` compute; None: the host."""
    find = getattr(backend, "device", None)
    return None if find is None else find(config)
