"""The places of experts' matrices in a GGUF: merged in one tensor per layer, or one tensor per expert in older files.

Merged tensors are (experts, rows, k): ``blk.0.ffn_gate_exps.weight``, ``ffn_up_exps`` and ``ffn_down_exps``, or gate
above up in ``ffn_gate_up_exps``. Older files (llama.cpp until April 2024) have tensors such as
``blk.0.ffn_gate.3.weight`` of expert 3, (rows, k). Biases are (experts, rows), under the same names with ``bias``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from infeng_core.api.formats import Layout, Part

FUSED = "ffn_gate_up_exps"
STEMS = {"gate_up_proj": ("ffn_gate", "ffn_up"), "down_proj": ("ffn_down",)}
"""The matrices of one expert in a packed tensor, in its order."""


class Place(NamedTuple):
    """The place of a part in a stored tensor."""

    name: str
    begin: int  # first row (value, of a bias), counted over all experts of the tensor
    shape: tuple[int, ...]  # required shape of the tensor


def places(layout: Layout, names: Collection[str]) -> dict[Part, Place]:
    """Return the place of each expert's matrices and biases in a file with tensors of these ``names``."""
    found: dict[Part, Place] = {}
    for spec in layout.tensors:
        if spec.experts:
            found |= _of(spec.name, spec.parts, "weight", (spec.k,), names)
    for vector in layout.vectors:
        if ".experts." in vector.name:
            found |= _of(vector.name.removesuffix(".bias"), vector.parts, "bias", (), names)
    return found


def _of(
    tensor: str, parts: Sequence[Part], kind: str, inputs: tuple[int, ...], names: Collection[str]
) -> Iterator[tuple[Part, Place]]:
    _, layer, _, stack = tensor.split(".")
    stems, block = STEMS[stack], f"blk.{layer}"
    count, merged = len(parts) // len(stems), [f"{block}.{stem}_exps.{kind}" for stem in stems]
    fused = f"{block}.{FUSED}.{kind}"
    is_fused = len(stems) == 2 and fused in names and not any(name in names for name in merged)
    for index, part in enumerate(parts):
        expert, which = divmod(index, len(stems))
        rows, stem = part.rows, f"{block}.{stems[which]}"
        if is_fused:
            yield part, Place(fused, (2 * expert + which) * rows, (count, 2 * rows, *inputs))
        elif merged[which] in names or f"{stem}.0.{kind}" not in names:
            yield part, Place(merged[which], expert * rows, (count, rows, *inputs))
        else:
            yield part, Place(f"{stem}.{expert}.{kind}", 0, (rows, *inputs))
