"""Types of the native core. Formats and ops are named as in manifests: "int4-g64", "linear"."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from infeng_core.errors import InfengError

ABI_VERSION: tuple[int, int]
NUMERICS: int  # the revision of what ops compute (docs/numerics.md)
ABI_SINCE: int

class NativeError(InfengError, RuntimeError):
    """A failure below Python: ``code`` is a short reason such as "missing_symbol", ``str()`` the text."""

    code: str

# ---------------------------------------------------------------------------------------------------------- cpu.cc

class CpuInfo(NamedTuple):
    """The processor, and how much of it this process may use."""

    arch: str
    vendor: str
    model: str
    features: list[str]  # what CPUID offers and the system has enabled (XCR0; for AMX also the permission call)
    masked: dict[str, str]  # feature: why it may not be used, though CPUID offers it
    cores: int  # in the affinity mask
    quota: float | None  # as ``cpu_quota``
    caches: dict[str, int]  # bytes of "l1d", "l2" and "l3", as far as the system tells

def cpu_info() -> CpuInfo: ...
def cpu_quota(root: str = "") -> float | None:
    """Return the CPUs' worth of time that the control group grants, or None; ``root`` stands before /proc and /sys."""

# ------------------------------------------------------------------------------------------------------ library.cc

class Problem:
    """What a kernel is asked to be good for (infeng_problem)."""

    def __init__(
        self,
        op: str,
        *,
        weight: str | None = None,
        act: str | None = None,
        kv: str | None = None,
        epilogues: Sequence[str | tuple[str, float, float]] = (),
        needs: Sequence[str] = (),
        rows: tuple[int, int] = (1, 1),
        n: int = 0,
        k: int = 0,
        context: int = 0,
        heads: int = 0,
        kv_heads: int = 0,
        head_dim: int = 0,
        v_head_dim: int = 0,
        workers: int = 1,
        experts: int = 0,
        top_k: int = 0,
    ) -> None:
        """``epilogues`` in their order, with scalars as (name, scalar, limit); ``v_head_dim`` 0: as ``head_dim``."""
    op: str
    weight: str | None
    act: str | None
    kv: str | None
    epilogues: list[str]
    steps: list[str | tuple[str, float, float]]  # the same as the constructor takes them
    needs: list[str]  # what a kernel must handle: "window", "lora_int8", ...
    rows: tuple[int, int]
    n: int
    k: int
    context: int
    heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int
    workers: int
    experts: int
    top_k: int
    def __hash__(self) -> int: ...

class Workspace(NamedTuple):
    """The scratch memory of a kernel, in bytes."""

    shared: int
    per_worker: int
    align: int

class Device:
    """A device on which a library's kernels compute, with memory of its own."""

    library: str  # the name of the library
    name: str  # such as "NVIDIA H200"; "" if the machine has none
    why: str  # it has none
    def memory(self) -> tuple[int, int]:
        """Return the bytes that are free, and all bytes; raises NativeError."""

class Kernel:
    """One kernel of an opened library; keeps the library alive."""

    library: str
    device: Device | None  # None: the host
    siblings: list[Kernel]  # all kernels of its library
    name: str
    op: str
    features: list[str]
    numerics: str  # "exact" or "approx"
    bound: float  # the most error of an approximate one's results, as a fraction of the largest; 0.0 of an exact one
    kind: str  # "tiles" or "whole"
    priority: int
    fuses: list[str]
    handles: list[str]  # needs of a problem
    def accepts(self, problem: Problem) -> bool: ...
    def workspace(self, problem: Problem) -> Workspace: ...

class Library:
    name: str
    version: str
    path: str
    device: Device | None  # on which its kernels compute; None: the host
    abi: tuple[int, int]
    kernels: list[Kernel]
    formats: list[str]  # weight formats that it brings or reads
    ops: list[str]  # ops that it describes
    faults: list[
        str
    ]  # what it describes wrongly, which is left out: "op clip: it has 0 operands, possible are 1 to 16"
    unknown: list[str]  # what it lists and this engine does not know: "op 17 of kernel layernorm"

def open_library(path: str, features: str = "") -> Library:
    """dlopen a kernel library and read its description; ``features`` are the CPU features it may use, comma separated.

    The same file and features give the same kernels. Raises NativeError with code "not_found", "bad_file",
    "truncated", "wrong_arch", "dlopen_failed", "missing_symbol", "entry_threw", "entry_failed", "abi_major",
    "abi_minor", "bad_struct", "bad_extension", "bad_format" or "null_function".
    """

# ------------------------------------------------------------------------------------------------- pool.cc arena.cc

class Pool:
    """Worker threads; the thread that calls ``Program.run`` is worker 0.

    Workers that wait spin for ``spin_us`` microseconds, then sleep. ``cpus``: where they run, together; default: where
    the calling thread may. ``pin`` keeps worker i on the i-th of them. ``nice`` is added to the niceness of all but
    worker 0. In a forked child ``Program.run`` raises NativeError "forked". Programs that share a pool take turns.
    """

    def __init__(
        self, threads: int, *, pin: bool = False, spin_us: int = 50, cpus: Sequence[int] = (), nice: int = 0
    ) -> None: ...
    threads: int
    cpus: list[int]

class Pages:
    """On which NUMA nodes pages lie, and whether they may leave memory; their bytes do not depend on it.

    policy: "first-touch" (the system's own), "prefer" (``nodes``, others when these are full) or "interleave"
    (``nodes`` in turn). ``lock``: in memory from the beginning, never swapped out.
    """

    def __init__(self, policy: str = "first-touch", nodes: Sequence[int] = (), lock: bool = False) -> None: ...
    policy: str
    nodes: list[int]
    lock: bool

def lock_memory(data: Any) -> None:
    """Read the pages under ``data`` and keep them in memory as long as they are mapped.

    Raises NativeError "lock_refused", as everything that takes ``pages`` does.
    """

class Arena:
    """Zeroed anonymous memory, 2 MB aligned, with huge pages on request; a buffer of writable bytes.

    place_error: the errno with which the system refused the policy of ``pages``; 0: it did not.
    """

    def __init__(self, nbytes: int, *, huge_pages: bool = True, pages: Pages = ...) -> None: ...
    nbytes: int
    place_error: int
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def huge_bytes(self) -> int:
        """Return how many bytes really are backed by huge pages."""

# ------------------------------------------------------------------------------------------------------ program.cc

class Weight:
    """A packed weight: ``panels`` panels of ``panel_bytes`` in ``data`` from byte ``offset`` on, 64-byte aligned."""

    def __init__(
        self, format: str, n: int, k: int, panels: int, panel_bytes: int, data: Any, offset: int = 0
    ) -> None: ...
    format: str
    n: int
    k: int
    panels: int

CACHE_FORMATS: tuple[str, ...]

class KvCache:
    """Key/value blocks of all layers in one arena."""

    def __init__(
        self,
        format: str,
        *,
        layers: int,
        blocks: int,
        kv_heads: int,
        head_dim: int,
        v_head_dim: int = 0,
        block_tokens: int = 16,
        pages: Pages = ...,
        device: Device | None = None,
    ) -> None:
        """``v_head_dim``: the size of a head of v; 0: as ``head_dim``."""
    nbytes: int
    place_error: int  # as an arena's
    block_bytes: int  # bytes of one block in all layers
    @staticmethod
    def bytes_per_block(
        format: str, *, layers: int, kv_heads: int, head_dim: int, v_head_dim: int = 0, block_tokens: int = 16
    ) -> int: ...
    def layer(self, index: int) -> NDArray[np.uint8]:
        """Return layer ``index`` as (blocks, kv_heads, slab bytes), a view."""

class Epilogue:
    """One step of an epilogue list; made by the static methods."""

    @staticmethod
    def bias(vector: NDArray[np.float32]) -> Epilogue: ...
    @staticmethod
    def row_scale(vector: NDArray[np.float32]) -> Epilogue: ...
    @staticmethod
    def residual(buffer: int) -> Epilogue: ...
    @staticmethod
    def silu_mul() -> Epilogue: ...
    @staticmethod
    def gated_mul(function: str, scalar: float = 0.0, limit: float = 0.0) -> Epilogue:
        """Panels alternate gate and up; ``function``: "silu", "gelu", "gelu_tanh", "relu2", "sigmoid", "swiglu"."""
    @staticmethod
    def activate(function: str) -> Epilogue: ...
    @staticmethod
    def mul(buffer: int, function: str = "identity") -> Epilogue:
        """Times ``function`` of a buffer, value by value."""
    @staticmethod
    def scale(scalar: float) -> Epilogue: ...
    @staticmethod
    def softcap(scalar: float) -> Epilogue: ...
    @staticmethod
    def quantize(activation: int) -> Epilogue: ...
    @staticmethod
    def lora(slot: int) -> Epilogue: ...

class AdapterPart(NamedTuple):
    """A projection of an adapter, as formats.adapters.packed.LoraPart says."""

    rank: int
    u_column: int
    first_panel: int
    panel_step: int
    panels: int
    b: NDArray[Any]  # (panels, rank, 16) of the adapter's type
    b_scale: NDArray[np.uint16] | None  # (panels * 16,) bf16
    row_scale: NDArray[np.float32] | None  # (panels * 16,)
    bias: NDArray[np.float32] | None  # (panels * 16,)

class AdapterTensor(NamedTuple):
    """What an adapter adds to one linear."""

    name: str  # as Program.shrink
    rank: int  # of all parts together
    a: NDArray[np.uint8]  # panels
    scaling: NDArray[np.float32]  # (rank rounded up to 16,)
    parts: list[AdapterPart]

class AdapterEmbedding(NamedTuple):
    """What an adapter adds to the embedding."""

    rank: int
    a: NDArray[np.float32]  # (vocabulary, rank)
    scaling: float
    part: AdapterPart

class Adapter:
    """An adapter in one piece of memory of its own, which goes back with the last reference; see Program.adapter."""

    nbytes: int

OPS: tuple[str, ...]
"""The core's own ops, by their numbers; libraries describe more."""

class Operand(NamedTuple):
    """An operand of an op over rows alone."""

    name: str
    kind: Literal["rows", "vector", "scalar", "row_index"]
    value: float  # of a scalar that a graph leaves out, and in checks

def row_ops() -> dict[str, tuple[Operand, ...]]:
    """Return the ops over rows alone, each with its operands; those of open libraries too."""

Bindings = Sequence[tuple[int, Kernel]]
"""Kernels by batch size: (most rows, kernel), ascending; a step of r rows takes the first with r <= rows."""

def barrier_times(pool: Pool, rounds: int) -> NDArray[np.int64]:
    """Return (rounds,) the nanoseconds that phases without work take, one after the other on all workers of a pool."""

class RoutingView(NamedTuple):
    """What one op ``route`` said, as views."""

    experts: NDArray[np.int32]  # (rows, top_k)
    weights: NDArray[np.float32]  # (rows, top_k)
    places: NDArray[np.int32]  # (rows, top_k) of the copies
    begin: NDArray[np.int32]  # (1, experts + 1) of each expert's copies

class ActivationView(NamedTuple):
    """An int8 activation, as views."""

    q: NDArray[np.int8]  # (rows, k padded to 64)
    scale: NDArray[np.float32]  # (rows, groups)
    sum: NDArray[np.int32]  # (rows, groups)

class OpInfo(NamedTuple):
    """One op of a program."""

    op: str
    epilogues: list[str]
    kernels: list[tuple[int, str]]  # (most rows, "library/kernel")

class ProfileReading(NamedTuple):
    """What a program measured; times are nanoseconds of ``time.perf_counter_ns``."""

    steps: int  # whole ones that ran
    rows: int  # of these
    step_ns: int  # head_ns + sum of wall_ns + tail_ns
    head_ns: int
    tail_ns: int
    phases: NDArray[Any]
    """(phases,) structured: op (index in ``ops``, of a group the first), kernel (index of the op's kernels), phase,
    calls, rows, tiles, wall_ns (from the arrival of the last worker at the barrier before to that at its own), macs,
    bytes (weights, adapters, keys and values; 0 where an op has none)."""
    workers: NDArray[Any]
    """(phases, threads) structured: busy_ns, late_ns (beginning of the phase to the first tile), tiles. The rest of
    wall_ns a worker waited for the last one."""
    events: list[NDArray[Any]]
    """Of each worker (events,) structured, oldest first: begin_ns, end_ns, step (from 0), op, kernel, phase, rows,
    tiles."""

class Program:
    """A flat list of ops bound to kernels; ``run`` executes one step without touching Python.

    Buffers are f32 matrices of ``max_rows`` (or ``max_samples``) rows; their row stride is the columns rounded up to
    64, padding is zero. ``epilogues`` are applied in order, all of them by the bound kernel.
    """

    def __init__(
        self,
        pool: Pool,
        *,
        max_rows: int,
        max_samples: int,
        max_segments: int,
        context: int,
        tables: int = 1,
        pages: Pages = ...,
        device: Device | None = None,
    ) -> None:
        """``tables``: of cache blocks, that each sequence has; an op over a cache names the one that it reads.

        ``pages``: of adapters, and of weights that kernels want in a layout of their own. ``device``: of all kernels;
        values, adapters and copies of weights are in its memory.
        """
    def split(
        self,
        *,
        memory: int,
        host: tuple[float, float],
        device: tuple[float, float],
        link: float,
        handoff: float,
        seed: int | None = None,
    ) -> None:
        """Let the host compute some of the experts of a device's program in each step; comes before the ops.

        The linears of experts, and ops over their rows, are added twice then: over the device's values, and with
        kernels of the host over values ``on_host``. memory: bytes of copies on the device, -1 most of what it leaves
        free. host, device: bytes and multiply-adds a second; link: bytes a second between them; handoff: seconds.
        seed: sides are drawn at random instead of by costs, for tests.
        """
    def hand_over(self, source: int, target: int) -> None:
        """Let the next op find the rows of experts that the host computes, copied to the value ``target`` of the other
        side."""
    def experts_chosen(self, *, on_device: bool) -> int:
        """Return how many experts one side has computed, in all layers and steps."""
    def buffer(self, columns: int, *, samples: bool = False, copies: int = 1, on_host: bool = False) -> int:
        """``copies``, here and below: rows for what so many experts get of each row. ``on_host``: see split."""
    def activation(
        self,
        columns: int,
        *,
        samples: bool = False,
        copies: int = 1,
        group: int = 64,
        rotated: int = 0,
        on_host: bool = False,
    ) -> int:
        """Declare int8 rows of ``columns`` inputs: sums for each 64, scales for each ``group`` of 64, 128 or 256, or
        with ROW_GROUP one for the row.

        rotated: the inputs of each block that a Hadamard matrix rotates, 0 or 64, for rows also 128 or 256. Linears
        over formats without integer sub-scales read wider groups as groups of 64 that have equal scales.
        """
    def routing(self, *, experts: int, top_k: int) -> int:
        """Make room for what one op ``route`` at a time says; returns what other ops name it by."""
    def open_adapters(self, dtype: str, *, columns: int, max_ranges: int) -> None:
        """Make room for adapters stored as ``dtype`` ("f32", "bf16" or "int8"); comes before the ops.

        ``columns`` of u: stacked rank rows of all adapters of one row. ``max_ranges``: of rows, in one step.
        """
    def set_branch(self, has_adapters: bool | None) -> None:
        """Add further ops for steps with, or without, a row that uses an adapter; None: for all steps.

        One computation can have two forms; the one without adapters has no step ``lora``.
        """
    def embed(self, kernels: Bindings, weight: Weight, out: int, *, module: str = "") -> None:
        """``module``, here and below: the name under which adapters may replace the weight; "": they may not."""
    def rmsnorm(
        self,
        kernels: Bindings,
        x: int,
        weight: NDArray[np.float32] | None,
        eps: float,
        out: int | None,
        epilogues: Sequence[Epilogue] = (),
        *,
        gather_samples: bool = False,
        module: str = "",
        offset: float = 0.0,
        heads: int = 1,
        size: int = 0,
        column: int = 0,
        on_demand: bool = False,
    ) -> None:
        """``gather_samples``: read the rows that are sampled, write (samples, k). ``on_demand``: see ``run``.

        ``offset`` is added to the weight. More heads than one, or a ``column``: each head of the weight's size from
        that column on is normed by itself; ``out`` may be ``x``. Without a weight ``size`` is normed; 0: all columns.
        """
    def linear(
        self,
        kernels: Bindings,
        weight: Weight,
        x: int,
        out: int | None,
        epilogues: Sequence[Epilogue] = (),
        *,
        module: str = "",
    ) -> None:
        """``x`` is a buffer (f32 and bf16 weights) or an activation (int weights): both share one numbering."""
    def expert_linear(
        self,
        kernels: Bindings,
        weight: Weight,
        x: int,
        out: int | None,
        epilogues: Sequence[Epilogue] = (),
        *,
        routing: int,
    ) -> None:
        """Run a linear for each expert that has rows, on its copies; ``weight`` holds all experts, in order."""
    def route(
        self,
        kernels: Bindings,
        logits: int,
        x: int,
        out: int,
        *,
        routing: int,
        columns: int,
        share_of_chosen: bool,
        for_adapters: bool = False,
    ) -> None:
        """Choose the experts of each row by ``logits`` and sort copies of the rows of ``x`` by expert.

        ``x`` and ``out``, which has top_k copies of each row, are both buffers or both activations of ``columns``.
        Weights are shares of the chosen experts, or of all. ``for_adapters``: it runs where the next ``shrink`` of
        experts does, for which it makes copies of another type.
        """
    def combine(
        self,
        kernels: Bindings,
        x: int,
        columns: int,
        out: int | None,
        epilogues: Sequence[Epilogue] = (),
        *,
        routing: int,
        shared: int | None = None,
        gate: int | None = None,
    ) -> None:
        """Add up the copies of each row by its experts' weights, then ``shared`` times the sigmoid of ``gate``."""
    def view_routing(self, routing: int) -> RoutingView: ...
    def shrink(self, kernels: Bindings, name: str, x: int, *, k: int, panels: int, routing: int | None = None) -> int:
        """Make u before the linear ``name`` of ``panels`` panels over ``k`` inputs; returns the slot for its LORA step.

        ``x`` is an activation where adapters are stored as int8, else a buffer. The step comes first in the list of the
        linear, or of an epilogue op behind it. With ``routing`` it is a linear of experts, of ``panels`` panels each.
        """
    def embedding_slot(self, *, vocabulary: int, panels: int) -> int:
        """Return the slot for a LORA step behind the embeddings; u of a token is looked up, not computed."""
    def adapter(
        self,
        dtype: str,
        tensors: list[AdapterTensor],
        *,
        embedding: AdapterEmbedding | None = None,
        saved_tensors: list[tuple[str, Weight]] = ...,
        saved_vectors: list[tuple[str, NDArray[np.float32]]] = ...,
    ) -> Adapter:
        """Copy an adapter into memory of its own; any thread, while steps run, releases the GIL.

        Raises NativeError "invalid_argument" naming what does not fit, or "out_of_memory".
        """
    def epilogue(
        self, kernels: Bindings, x: int, columns: int, out: int | None, epilogues: Sequence[Epilogue]
    ) -> None: ...
    def row_op(
        self,
        op: str,
        kernels: Bindings,
        columns: int,
        out: int | None,
        epilogues: Sequence[Epilogue] = (),
        *,
        operands: Mapping[str, int | float | NDArray[np.float32]],
        gather_samples: bool = False,
        on_demand: bool = False,
    ) -> None:
        """Add an op of ``row_ops``: rows of ``columns`` values are read, rows of as many made, then the epilogues.

        ``operands`` by name: a buffer for rows, (columns,) float32 for a vector. ``gather_samples``: ``row_index`` is
        that of the sampled rows, so they are read of the first operand. ``on_demand``: only in steps that ask for it.
        """
    def rope(
        self,
        kernels: Bindings,
        x: int,
        *,
        heads: int,
        kv_heads: int,
        head_dim: int,
        k_column: int,
        cos: NDArray[np.float32],
        sin: NDArray[np.float32],
        q_norm: NDArray[np.float32] | None = None,
        k_norm: NDArray[np.float32] | None = None,
        q_scale: NDArray[np.float32] | None = None,
        eps: float = 0.0,
        module: str = "",
    ) -> None:
        """q starts at column 0 of ``x``, k at ``k_column``.

        Heads with a norm (head_dim,) are normed first, with ``eps``; at the end q is scaled by its position's
        ``q_scale`` (positions,). An adapter has in place of the norms of a ``module`` both, each on a multiple of 16
        values.
        """
    def kv_append(
        self, kernels: Bindings, x: int, cache: KvCache, layer: int, *, k_column: int, v_column: int, table: int = 0
    ) -> None: ...
    def attention(
        self,
        kernels: Bindings,
        x: int,
        cache: KvCache,
        layer: int,
        out: int,
        *,
        heads: int,
        window: int = 0,
        scale: float,
        softcap: float = 0.0,
        mask: str = "causal",
        sinks: NDArray[np.float32] | None = None,
        slopes: NDArray[np.float32] | None = None,
        epilogues: Sequence[Epilogue] = (),
        table: int = 0,
    ) -> None:
        """``mask``: "causal", or "full" for rows that see their whole segment. ``sinks``, ``slopes``: (heads,)."""
    def ops(self) -> list[OpInfo]:
        """Return every op, in order."""
    def read_blocks(self, cache: KvCache, blocks: NDArray[np.int32]) -> NDArray[np.uint8]:
        """Return copies of whole blocks, (blocks, block_bytes); waits for a step in flight."""
    def write_blocks(self, cache: KvCache, blocks: NDArray[np.int32], data: NDArray[np.uint8]) -> None:
        """Put back what ``read_blocks`` returned, into any blocks; waits for a step in flight.

        ``data``: (blocks, block_bytes); its rows are contiguous and need not follow each other.
        """
    def copy_blocks(self, cache: KvCache, source: NDArray[np.int32], target: NDArray[np.int32]) -> None:
        """Copy block source[i] onto target[i], one after the other; waits for a step in flight."""
    def profile(self, on: bool, *, events: int = 65536, groups: Sequence[int] = ()) -> None:
        """Measure every step from now on, from zero, or stop and forget; waits for a step in flight.

        ``events``: of each worker, the latest that are kept for a trace (40 bytes each). Nothing is allocated while
        steps run, and nothing at all is done where this is off. ``groups``: for each op the first of the ops that share
        its totals, which must have as many kernels; empty: each op has its own.
        """
    def profile_read(self) -> ProfileReading:
        """Return what was measured so far; raises NativeError "not_profiled" while profiling is off."""
    def finish(self) -> None:
        """Size and take all scratch memory; no op may be added afterwards and ``run`` allocates nothing.

        Raises NativeError: "not_handled" or "not_accepted" when a bound kernel cannot do its op.
        """
    def run(
        self,
        tokens: NDArray[np.int32],  # (rows,)
        positions: NDArray[np.int32],  # (rows,)
        segments: NDArray[np.int32],  # (segments, 4): row_begin, row_end, pos0, first index into block_tables
        block_tables: NDArray[np.int32],  # flat; a further table begins ceil(context / 16) entries behind the first
        sample_rows: NDArray[np.int32],  # (samples,)
        adapters: Sequence[tuple[int, int, Any, float]] = (),  # row_begin, row_end, Adapter, weight
        on_demand: bool = False,
    ) -> None:
        """Run all ops on one batch, those on demand only if they are asked for; releases the GIL.

        Segments lie one after the other and cover all rows; row r of a segment is at position pos0 + r - row_begin; no
        two segments write to one block. ``segments`` may be empty, (0, 4), where no op uses a cache. Blocks that lie
        before all windows of a table's ops may be -1. Raises
        NativeError: "invalid_argument" naming the array and the index, "cancelled", "forked", or what a kernel
        returned ("not_finite", ...) with the op, the kernel and its message.
        """
    def cancel(self) -> None:
        """Stop a run, between two tiles or while it waits for its pool; it raises NativeError with code "cancelled".

        Any thread may call this; without a run it does nothing.
        """
    def view(self, buffer: int, *, fetched: bool = False) -> NDArray[np.float32]:
        """Return a buffer as (max rows, columns) float32, without padding; writable, overwritten by the next run.

        On a device, it is a copy that is written to the device before each run and read after it. ``fetched``: only
        ``fetch`` reads it.
        """
    def fetch(self, buffer: int, rows: int) -> None:
        """Read the first ``rows`` rows of a device's buffer into its view; on the host there is nothing to do."""
    def view_activation(self, activation: int) -> ActivationView: ...
    scratch_bytes: int
    scratch_is_intact: bool  # no kernel has written behind the memory that its workspace asked for
    def op_count(self) -> int: ...

# ------------------------------------------------------------------------------------------------------ formats.cc

WEIGHT_FORMATS: dict[str, Literal["f32", "int8-g64"]]  # the core's own, each with what a linear over it reads

ROW_GROUP: int  # the group of int8 rows with one scale each
MOST_ROW_INPUTS: int  # of such a row

class WeightFormatInfo(NamedTuple):
    """What the descriptor of a weight format says beside its name and its functions."""

    number: int  # in the ABI
    group: int  # inputs that share a scale; 0 for floats
    lowest: int  # of a weight's integer
    highest: int

def weight_format(format: str) -> WeightFormatInfo: ...
def activation(format: str) -> Literal["f32", "int8-g64"]:
    """Return what a linear over a weight format reads; libraries that are open add theirs to the core's own."""

def format_descriptor(format: str) -> Any:
    """Return the ABI's descriptor of a weight format, a capsule for extension modules."""

def panel_bytes(format: str, k: int) -> int: ...
def unpack(
    format: str, data: Any, offset: int, panels: int, k: int, *, first_panel: int = 0, panel_step: int = 1
) -> NDArray[np.float32]:
    """Return (panels * 16, k) float32, the values the kernels compute with."""

def check_panels(format: str, data: Any, offset: int, panels: int, k: int, *, threads: int = 1) -> None:
    """Look at panels that somebody else wrote, where a format forbids some bytes; GIL released.

    Raises NativeError "out_of_range" or "not_finite" naming row and column.
    """

class CodeGrid(NamedTuple):
    """What codes and scales a format stores."""

    group: int  # inputs of one scale; 0: all of an output
    lowest: int  # code
    highest: int
    scale_type: Literal["float16", "float32"]

def code_grid(format: str) -> CodeGrid | None:
    """Return the grid of an integer format whose codes and scales others may choose; None for another.

    Another is one of floats, one with sub-scales or minima, and one of a library that does not write codes.
    """

class SubGrid(NamedTuple):
    """What sub-scales a format stores."""

    group: int  # inputs of one sub-scale
    most_scale: int
    most_code: int  # and zero point

def sub_grid(format: str) -> SubGrid | None:
    """Return the sub-scales of a format, or None."""

class MinimaGrid(NamedTuple):
    """What minima a format stores."""

    group: int  # inputs of one sub-scale and minimum
    superblock: int  # inputs of one pair of scales

def minima_grid(format: str) -> MinimaGrid | None:
    """Return the minima of a format, or None."""

# ------------------------------------------------------------------------------------------------ rope.cc sampling.cc

def rope_inv_freq(rot: int, theta: float) -> NDArray[np.float64]:
    """Return theta^(-2i/rot) for i < rot/2, from the core's own exp and log."""

class RopeTables(NamedTuple):
    """By position: both are (positions, frequencies)."""

    cos: NDArray[np.float32]
    sin: NDArray[np.float32]

def rope_tables(inv_freq: NDArray[np.float32], positions: int) -> RopeTables: ...

class Masks(NamedTuple):
    """Which tokens some rows may have."""

    rows: NDArray[np.int32]  # (masks,) ascending
    bits: NDArray[np.uint32]  # (masks, ceil(vocab / 32))

class Changes(NamedTuple):
    """Penalties and biases of some tokens of some rows; each (changes,), rows ascending."""

    rows: NDArray[np.int32]
    ids: NDArray[np.int32]
    penalties: NDArray[np.float32]
    biases: NDArray[np.float32]

class Filters(NamedTuple):
    """The filters that few requests use; each (samples,)."""

    typical_p: NDArray[np.float32]  # 1: off
    top_n_sigma: NDArray[np.float32]  # 0: off
    xtc_probability: NDArray[np.float32]  # 0: off
    xtc_threshold: NDArray[np.float32]

def sample(
    logits: NDArray[np.float32],  # (samples, vocab)
    temperature: NDArray[np.float32],  # (samples,) 0: greedy
    top_k: NDArray[np.int32],  # 0: off
    top_p: NDArray[np.float32],  # 1: off
    min_p: NDArray[np.float32],  # 0: off
    seed: NDArray[np.uint64],
    position: NDArray[np.int64],
    out: NDArray[np.int32],  # (samples,)
    masks: Masks | None = None,
    changes: Changes | None = None,
    filters: Filters | None = None,
    order: NDArray[np.uint8] | None = None,
) -> None:
    """Pick one id per row as docs/numerics.md says; NOT_FINITE or NOTHING_ALLOWED where there is none.

    order: of all filters, by their place in FILTERS.
    """

FILTERS: tuple[str, ...]
"""What narrows the choice after the temperature, in the order in which it does where no other is named."""

NOT_FINITE: int
"""In place of an id: the logits hold NaN or infinity."""
NOTHING_ALLOWED: int
"""In place of an id: the masks leave every token out."""

def philox(key: Sequence[int], counter: Sequence[int]) -> list[int]:
    """Return Philox4x32-10 of a key of two and a counter of four 32-bit words."""
