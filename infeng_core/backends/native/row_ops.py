"""The operands of a graph's row op as a program takes them, compared with the op's own description."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from infeng_core import _native
from infeng_core.backends.native.emitter import Operands, role
from infeng_core.errors import ModelError, unknown_key_remedy
from infeng_core.models.ops import RowOp

WANTED = {"rows": "a value, in `rows`", "vector": "the name of a vector, in `operands`", "scalar": "a number"}
"""What a graph gives for each kind of operand."""

PLAIN = {"layernorm": {"weight": 1.0, "bias": 0.0}}
"""The vectors that a graph may leave out, by the op, and the number that stands for all of their values."""


@dataclass(frozen=True)
class Arguments:
    """What ``Program.row_op`` takes."""

    operands: dict[str, Any]
    columns: int
    detail: str
    """The op's operand in lists of kernels: ``layers.*.attn_norm 64``."""

    @property
    def problem(self) -> dict[str, Any]:
        """The sizes of its problem."""
        return {"n": self.columns, "k": self.columns}


def arguments_of(op: RowOp, described: Sequence[_native.Operand], known: Operands) -> Arguments:
    """Return the arguments of ``op``, whose operands are ``described``, over the values and vectors of ``known``.

    Raises ModelError where the graph gives other operands than the op has, KeyError for a value or a vector that the
    model lacks.
    """
    described = [one for one in described if one.kind != "row_index"]
    values = {described[0].name: op.x, **op.rows}
    names = [one.name for one in described]
    for name in (*values, *op.operands):
        if name not in names:
            raise _fault(op, known, f"gives it an operand {name}", unknown_key_remedy(name, names))
    found = {one.name: _argument(op, one, values, known) for one in described}
    vectors = [one.name for one in described if one.kind == "vector" and found[one.name] is not None]
    sizes = [len(found[name]) for name in vectors]
    columns = op.columns or (sizes[0] if sizes else known.graph.values[op.x].columns)
    for name, size in zip(vectors, sizes, strict=True):
        if size != columns:
            why = f"gives it {op.operands[name]} of {size} values as {name}, for rows of {columns}"
            raise _fault(op, known, why, "its vectors are as long as its rows")
    plain = PLAIN.get(op.op, {})
    found |= {name: np.full(columns, plain[name], np.float32) for name in plain if name not in vectors}
    if op.op not in _native.OPS and op.out in values.values():
        raise _fault(op, known, f"lets it write {op.out}, which it reads", "let it write a value of its own")
    return Arguments(found, columns, f"{role(str(op.operands[vectors[0]])) if vectors else op.out} {columns}")


def _argument(op: RowOp, one: _native.Operand, values: dict[str, str], known: Operands) -> Any:
    """Return one operand: a buffer, a vector or a number."""
    given = op.operands.get(one.name)
    if one.kind == "rows" and one.name in values:
        return known.buffer(values[one.name])
    if one.kind == "vector" and (isinstance(given, str) or (given is None and one.name in PLAIN.get(op.op, {}))):
        return None if given is None else known.model.vectors[given]
    if one.kind == "scalar" and one.name not in values:
        if given is None:
            return one.value
        if isinstance(given, int | float) and np.isfinite(given):
            return float(given)
    why = f"gives it no {one.name}" if given is None else f"gives it {given!r} as {one.name}"
    raise _fault(op, known, why, f"give it {WANTED[one.kind]}")


def _fault(op: RowOp, known: Operands, why: str, remedy: str) -> ModelError:
    return ModelError(f"family {known.model.config.family}", f"its graph has the op {op.op} and {why}", remedy)
