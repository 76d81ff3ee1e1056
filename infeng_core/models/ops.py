"""The ops of model families: a graph is a list of ops over named values.

A value is a matrix of float32 with one row per token of the batch (or per sampled row). Ops run in order, and an op
may overwrite a value, so ``hidden`` names the residual stream in every layer. docs/numerics.md says what each op
computes; the backend decides which values are kept as int8 and what is fused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from infeng_core.models.rope_config import RopeConfig

PANEL = 16
"""Outputs of a linear op come in panels of this many columns; the columns past the last output are zero."""


def panel_columns(outputs: int) -> int:
    """Return ``outputs`` rounded up to whole panels."""
    return -(-outputs // PANEL) * PANEL


@dataclass(frozen=True, slots=True)
class Value:
    """A named matrix: (rows, columns) float32, or (samples, columns) where ``sampled``."""

    columns: int
    sampled: bool = False
    copies: int = 1  # (rows * copies, columns): one copy of each row per chosen expert


@dataclass(frozen=True, slots=True)
class Bias:
    """``cur[m][n] += vector[n]``; ``vector`` names a vector of the model, in panel order."""

    vector: str


@dataclass(frozen=True, slots=True)
class Residual:
    """``cur[m][n] += value[m][n]``; ``value`` may be the op's own output, which then still holds its old content."""

    value: str


@dataclass(frozen=True, slots=True)
class RowScale:
    """``cur[m][n] *= vector[n]``: each output, a row of the weight, has a factor; ``vector`` as that of ``Bias``."""

    vector: str


@dataclass(frozen=True, slots=True)
class Mul:
    """``cur[m][n] *= function(value[m][n])``; docs/numerics.md lists functions, ``identity`` among them."""

    value: str
    function: str = "identity"


@dataclass(frozen=True, slots=True)
class SiluMul:
    """Panels alternate gate and up: ``cur`` becomes ``silu(gate) * up``, half as wide."""


@dataclass(frozen=True, slots=True)
class GatedMul:
    """``SiluMul`` with another function: ``cur`` becomes ``function(gate) * up``; docs/numerics.md lists functions.

    ``swiglu``: (up + 1) * gate * sigmoid(slope * gate), with gate <= ``limit`` and -``limit`` <= up <= ``limit``.
    """

    function: str
    slope: float = 0.0
    limit: float = 0.0


@dataclass(frozen=True, slots=True)
class Scale:
    """``cur *= factor``."""

    factor: float


@dataclass(frozen=True, slots=True)
class Softcap:
    """``cur = cap * tanh(cur / cap)``."""

    cap: float


@dataclass(frozen=True, slots=True)
class Activate:
    """``cur = function(cur)``; docs/numerics.md lists functions."""

    function: str


Step = Bias | RowScale | Residual | Mul | SiluMul | GatedMul | Scale | Softcap | Activate
"""The steps that may follow a linear op before its result is written."""


@dataclass(frozen=True, slots=True)
class Embed:
    """``out[m] = weight[ids[m]]``."""

    weight: str
    out: str  # (rows, hidden)


@dataclass(frozen=True, slots=True)
class RmsNorm:
    """``out = (x / sqrt(mean(x^2) + eps)) * (offset + weight)``; if only ``out`` is sampled, of the sampled rows.

    With ``heads`` above 0, ``out`` is ``x``: that many adjacent vectors of the weight's length, from ``column`` on,
    are normed one by one. Without a weight nothing is multiplied, and ``size`` values are normed, 0 for all of ``x``.
    """

    weight: str  # "": none
    x: str
    out: str
    eps: float
    offset: float = 0.0
    heads: int = 0
    column: int = 0
    size: int = 0


@dataclass(frozen=True, slots=True)
class LayerNorm:
    """``out = (x - mean(x)) / sqrt(variance(x) + eps) * weight + bias``; if only ``out`` is sampled, of the sampled
    rows. Without a weight and a bias ``size`` values are normed, 0 for all of ``x``."""

    weight: str  # "": none
    bias: str  # "": none
    x: str
    out: str
    eps: float
    size: int = 0

    def as_row_op(self) -> RowOp:
        """Return the same op by the names of its operands."""
        vectors = {name: vector for name, vector in (("weight", self.weight), ("bias", self.bias)) if vector}
        return RowOp("layernorm", self.x, self.out, {**vectors, "eps": self.eps}, columns=self.size)


@dataclass(frozen=True, slots=True)
class RowOp:
    """``out = steps(op(x, ...))``: an op over rows by its name, the engine's own or one that a library describes.

    If only ``out`` is sampled, ``x`` is read at the sampled rows. ``out`` is no operand of a library's op.
    """

    op: str
    x: str  # (rows, columns), the first operand
    out: str  # (rows, columns)
    operands: Mapping[str, str | float] = field(default_factory=dict, hash=False)
    """Vectors of the model and numbers by the names of their operands; a number that is left out has the op's own."""
    rows: Mapping[str, str] = field(default_factory=dict, hash=False)  # further values, as operands
    steps: tuple[Step, ...] = ()
    columns: int = 0  # 0: as many as the vectors have, or ``x`` where there are none


@dataclass(frozen=True, slots=True)
class Linear:
    """``out = steps(x W^T)``; ``weight`` names a packed tensor of (panels * 16, k)."""

    weight: str
    x: str  # (rows, k)
    out: str
    steps: tuple[Step, ...] = ()


@dataclass(frozen=True, slots=True)
class Apply:
    """``out = steps(x)``, where no step changes the width; ``out`` may be ``x``."""

    x: str
    out: str
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotates the q heads from column 0 of ``x`` and the k heads from ``k_column`` in place, by each row's position.

    ``q_norm`` and ``k_norm`` name vectors (head_dim,); each head is first normed with them, as ``RmsNorm`` does.
    """

    x: str
    heads: int
    kv_heads: int
    head_dim: int
    k_column: int
    rope: RopeConfig
    q_norm: str = ""
    k_norm: str = ""
    eps: float = 0.0
    offset: float = 0.0


@dataclass(frozen=True, slots=True)
class KvAppend:
    """Writes k and v of each row to the row's position in the cache of ``layer``."""

    x: str
    layer: int
    k_column: int
    v_column: int


@dataclass(frozen=True, slots=True)
class Attention:
    """Causal attention of the q heads at column 0 of ``x`` over the cache of ``layer``; ``window`` 0 sees all.

    ``slopes`` are those of ALiBi (Press et al., 2022): slope * (t - P) is added to a score of position t at P.
    """

    x: str
    out: str  # (rows, heads * v_head_dim)
    layer: int
    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    window: int = 0
    softcap: float = 0.0  # of scores; 0: none
    sinks: str = ""  # a vector (heads,) of scores without a value
    slopes: tuple[float, ...] = ()  # (heads,)
    v_head_dim: int = 0  # of a head of v; 0: as ``head_dim``


@dataclass(frozen=True, slots=True)
class Route:
    """Sends each row of ``x`` to the ``top_k`` experts with the largest ``logits``, and sorts the copies by expert.

    An expert's weight is its softmax share among all experts, or among the chosen ones.
    """

    logits: str  # (rows, experts)
    x: str
    out: str  # (rows * top_k, columns of x), which the linear with ``weight`` reads
    weight: str
    experts: int
    top_k: int
    share_of_chosen: bool


@dataclass(frozen=True, slots=True)
class ExpertLinear:
    """``Linear`` of each expert on its rows, as the latest ``Route`` sorted them; ``weight`` holds all experts."""

    weight: str
    x: str  # (rows * top_k, k)
    out: str
    steps: tuple[Step, ...] = ()


@dataclass(frozen=True, slots=True)
class Combine:
    """``out = steps(sum of weight * copy)`` over the copies of each row, by the weights of the latest ``Route``.

    ``shared`` is added before the steps, multiplied by the sigmoid of ``gate`` if there is a gate.
    """

    x: str  # (rows * top_k, columns)
    out: str
    steps: tuple[Step, ...] = ()
    shared: str = ""  # (rows, columns)
    gate: str = ""  # (rows, 16); only the first column counts


Op = Embed | RmsNorm | LayerNorm | RowOp | Linear | Apply | Rope | KvAppend | Attention | Route | ExpertLinear | Combine


@dataclass(frozen=True, slots=True)
class Graph:
    """One forward pass: the values by name and the ops in order; ``logits`` is (samples, vocab padded to panels).

    ``inputs`` are the values that the caller of a program writes before each run; the graph of a family has none.
    """

    values: Mapping[str, Value]
    ops: tuple[Op, ...]
    logits: str
    inputs: tuple[str, ...] = ()


def reads(op: Op) -> tuple[str, ...]:
    """Return the names of the values that ``op`` and its steps read."""
    if isinstance(op, Embed):
        return ()
    steps = op.steps if isinstance(op, Linear | Apply | ExpertLinear | Combine | RowOp) else ()
    first: tuple[str, ...] = (op.logits, op.x) if isinstance(op, Route) else (op.x,)
    if isinstance(op, Combine):
        first += tuple(filter(None, (op.shared, op.gate)))
    if isinstance(op, RowOp):
        first += tuple(op.rows.values())
    return (*first, *(step.value for step in steps if isinstance(step, Residual | Mul)))


def writes(op: Op) -> str:
    """Return the name of the value that ``op`` writes, or "" for an op that writes only to the cache."""
    if isinstance(op, KvAppend):
        return ""
    return op.x if isinstance(op, Rope) else op.out


def consumers(graph: Graph, index: int) -> list[Op]:
    """Return the ops that read the value written by op ``index``, until it is overwritten."""
    name = writes(graph.ops[index])
    found: list[Op] = []
    for op in graph.ops[index + 1 :]:
        if name in reads(op):
            found.append(op)
        if writes(op) == name:
            break
    return found
