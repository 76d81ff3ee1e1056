"""Where a GGUF holds the matrices of experts: all of a layer in one tensor, or each by itself as older files have them.

Merged tensors are (experts, rows, k): ``blk.0.ffn_gate_exps.weight``, ``ffn_up_exps`` and ``ffn_down_exps``, or gate
above up in ``ffn_gate_up_exps``. Before them (llama.cpp until April 2024) there was ``blk.0.ffn_gate.3.weight`` of
expert 3, (rows, k), and so on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

from infeng_core.models.weights import Layout, Part, TensorSpec

FUSED = "ffn_gate_up_exps"
STEMS = {"gate_up_proj": ("ffn_gate", "ffn_up"), "down_proj": ("ffn_down",)}
"""The matrices of one expert that a packed tensor is made of, in its order."""


class Place(NamedTuple):
    """Rows of a stored tensor, counted over all of its experts, and the shape that it must have."""

    name: str
    begin: int
    shape: tuple[int, ...]


def places(layout: Layout, names: Collection[str]) -> dict[Part, Place]:
    """Return where each matrix of each expert is, or should be, in a file with tensors of these ``names``."""
    return {part: place for spec in layout.tensors if spec.experts for part, place in _of(spec, names)}


def _of(spec: TensorSpec, names: Collection[str]) -> Iterator[tuple[Part, Place]]:
    _, layer, _, kind = spec.name.split(".")
    stems, count = STEMS[kind], spec.experts
    for index, part in enumerate(spec.parts):
        expert, which = divmod(index, len(stems))
        block, rows = f"blk.{layer}", part.rows
        fused, each = f"{block}.{FUSED}.weight", f"{block}.{stems[which]}.{expert}.weight"
        merged = f"{block}.{stems[which]}_exps.weight"
        if len(stems) == 2 and fused in names and merged not in names:
            yield part, Place(fused, (2 * expert + which) * rows, (count, 2 * rows, spec.k))
        elif merged in names or f"{block}.{stems[which]}.0.weight" not in names:
            yield part, Place(merged, expert * rows, (count, rows, spec.k))
        else:
            yield part, Place(each, 0, (rows, spec.k))
