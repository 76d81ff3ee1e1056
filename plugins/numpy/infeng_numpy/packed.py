"""Unpack an adapter from the kernels' layout to matrices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from infeng_core.api.adapters import A_FORMAT, folded_inputs, stacked_panels, tail_layout
from infeng_core.api.formats import TensorSpec, layout

from .activations import PLAIN, Rounding
from .adapter import Adapter, Change
from .hadamard import rotate_blocks
from .llama import Linear
from .weights import FAMILIES

if TYPE_CHECKING:
    from infeng_core.api.adapters import AdapterDtype
    from infeng_core.api.engines import LoraPart, LoraTensor, PackedAdapter
    from infeng_core.api.formats import ModelConfig

Real = NDArray[np.float64]
Rounded = Callable[[str], Rounding | None]

INTEGERS = ("int8", "int8t4")
LANES, ROWS = tail_layout.LANES, tail_layout.ROWS
"""Storages of adapters whose A reads int8 activations."""


@dataclass(frozen=True, eq=False)
class Handle:
    """An adapter that the backend holds."""

    adapter: Adapter
    nbytes: int  # of the matrices in binary64


def unpacked(packed: PackedAdapter, config: ModelConfig, rounding: Rounded = lambda packed: PLAIN) -> Handle:
    """Return the matrices of a packed adapter.

    rounding: returns the int8 rounding of a packed tensor's inputs, which an int8 A reads too.
    """
    specs = {one.name: one for spec in layout(config).tensors for one in (spec.each() or (spec,))}
    if config.tie_embeddings:
        specs["lm_head"] = specs["embed"]
    changes: dict[str, Change] = {}
    for name, tensor in packed.tensors.items():
        changes |= _of_tensor(
            name, tensor, specs[name], packed.dtype, rounding(specs[name].name.partition("[")[0]) or PLAIN
        )
    if packed.embedding is not None:
        a, part = packed.embedding.a.T.astype(np.float64), packed.embedding.part  # (rank, vocab)
        scaling = np.full(len(a), packed.embedding.scaling, np.float64)
        changes["model.embed_tokens"] = _change(a, scaling, part, slice(config.hidden), int8_input=False)
    head = packed.saved_tensors.get("lm_head")
    embed = packed.saved_tensors.get("embed")
    adapter = Adapter(
        changes,
        None if embed is None else _real(embed.dequantize()),
        None
        if head is None
        else Linear(
            _real(head.dequantize()),
            int8_input=not head.quant.is_float,
            rounding=Rounding(head.quant.group, head.quant.rotation(head.k)),
        ),
        _norms(packed, config),
    )
    return Handle(adapter, _nbytes(adapter))


def _of_tensor(
    name: str, tensor: LoraTensor, spec: TensorSpec, dtype: AdapterDtype, rounding: Rounding
) -> dict[str, Change]:
    """Return an adapter's change of each projection in a packed tensor, by the projection's name."""
    a = _real(unpack_stacked(cast(Panels, A_FORMAT[dtype]), tensor.a, tensor.rank, spec.k))  # (rank, k)
    if dtype in INTEGERS and rounding.block:
        a = rotate_blocks(a, rounding.block).astype(np.float64)
    found = {}
    for lora in tensor.parts:
        [part] = (p for p in spec.parts if (p.first_panel, p.panel_step) == (lora.first_panel, lora.panel_step))
        rows = slice(lora.u_column, lora.u_column + lora.rank)
        module = "lm_head" if name == "lm_head" else part.module
        scaling = _real(tensor.scaling[rows])  # (rank,)
        change = _change(a[rows], scaling, lora, slice(part.rows), int8_input=dtype in INTEGERS)
        found[module] = replace(change, rounding=rounding)
    return found


class Panels(Protocol):
    """Panels of 16 rows."""

    def panel_bytes(self, k: int) -> int:
        """Return the bytes of one panel over ``k`` inputs."""

    def unpack(self, a: NDArray[np.uint8], offset: int, panels: int, k: int, /) -> NDArray[np.float32]:
        """Return the rows of ``panels`` panels, (panels * 16, k)."""


def unpack_stacked(format: Panels, a: NDArray[np.uint8], rank: int, k: int) -> NDArray[np.float32]:
    """Return the rows of an A, (rank, k) float32."""
    whole, is_folded = stacked_panels(rank)
    found = [format.unpack(a, 0, whole, k)] if whole else []
    if is_folded:
        lanes = format.unpack(a, whole * format.panel_bytes(k), 1, folded_inputs(k))
        found.append(np.concatenate([lanes[: LANES // 2], lanes[LANES // 2 :]], axis=1)[:, :k])
    return np.concatenate([*found, np.empty((0, k), np.float32)])[:rank]


def unpack_tails(b: NDArray[np.uint8]) -> NDArray[np.int8]:
    """Return the numbers of a B, (panels, blocks, 72), as int8 (panels, rank, 16)."""
    blocks: NDArray[Any] = np.empty((*b.shape[:2], ROWS, LANES), np.int8)
    blocks[:, :, 0] = b[:, :, :LANES].view(np.int8)
    tails = b[:, :, LANES:].reshape(*b.shape[:2], ROWS - 1, LANES // 2)
    blocks[:, :, 1:] = np.concatenate([tails & 15, tails >> 4], axis=3).astype(np.int8) - np.int8(8)
    return blocks.reshape(len(b), ROWS * b.shape[1], LANES)


def _change(a: Real, scaling: Real, part: LoraPart, rows: slice, *, int8_input: bool) -> Change:
    b = unpack_tails(part.b) if part.b.dtype == np.uint8 else _widened(part.b)  # (panels, rank, 16)
    b = _real(b).transpose(0, 2, 1).reshape(part.panels * 16, part.rank)  # (panels * 16, rank)
    if part.b_scale is not None:
        b *= _widened(part.b_scale)[:, None]
    row_scale, bias = (None if v is None else _real(v[rows]) for v in (part.row_scale, part.bias))
    return Change(a, b[rows], scaling, row_scale, bias, int8_input)


def _widened(stored: NDArray[Any]) -> NDArray[Any]:
    """Return bf16 bits as binary32; other arrays unchanged."""
    return (stored.astype(np.uint32) << 16).view(np.float32) if stored.dtype == np.uint16 else stored


def _norms(packed: PackedAdapter, config: ModelConfig) -> dict[str, Real]:
    """Return an adapter's norms by their names in a checkpoint, with the family's offset added."""
    vectors = {vector.name: vector for vector in layout(config).vectors}
    offset = FAMILIES[config.family].offset
    return {
        vectors[name].parts[0].source.removesuffix(".weight"): _real(vector[: vectors[name].size]) + offset
        for name, vector in packed.saved_vectors.items()
    }


def _real(array: NDArray[Any]) -> Real:
    return array.astype(np.float64)


def _nbytes(adapter: Adapter) -> int:
    arrays = [adapter.embed, None if adapter.head is None else adapter.head.weight, *adapter.norms.values()]
    for change in adapter.changes.values():
        arrays += [change.a, change.b, change.scaling, change.row_scale, change.bias]
    return sum(array.nbytes for array in arrays if array is not None)
