"""DoRA: the norms of the adapted weight, over the packed base.

DoRA (Liu et al., 2024; ``peft/tuners/lora/dora.py``) computes ``magnitude / ||W + s B A||`` for each output. The sum is
multiplied out, ``||w + s b A||^2 = ||w||^2 + 2 s (w A^T) b^T + s^2 b (A A^T) b^T``, so that B A is never formed. It
is in double and rounded once, so the order of a BLAS's additions rarely matters.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from infeng_core.api.formats import PANEL_ROWS, PackedTensor
from infeng_peft.weights import Delta

BLOCK_PANELS = 32  # 512 rows at a time: 23 MB in double for the widest layer of a 1.1B model


def row_scales(delta: Delta, scaling: float, base: PackedTensor) -> NDArray[np.float32]:
    """Return magnitude / norm for each output, float32; 1 if the adapted weight is zero, since its outputs are zero
    too.

    ``base`` holds the module's weight, for an embedding the embeddings: there an output is a column of the matrix.
    """
    assert delta.magnitude is not None
    a, b = delta.a.astype(np.float64), delta.b.astype(np.float64)
    measure = _of_columns if delta.site.kind == "embedding" else _of_rows
    squares, cross = measure(delta, base, a, b)
    total = squares + 2.0 * scaling * cross + scaling * scaling * np.einsum("ni,ij,nj->n", b, a @ a.T, b, optimize=True)
    norms = np.sqrt(np.maximum(total, 0.0))
    safe = np.where(norms > 0.0, norms, 1.0)
    return np.where(norms > 0.0, delta.magnitude / safe, 1.0).astype(np.float32)


def _of_rows(
    delta: Delta, base: PackedTensor, a: NDArray[np.float64], b: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    squares, products = [], []
    across = np.ascontiguousarray(a.T)
    for block in _blocks(delta, base):
        squares.append(np.einsum("nk,nk->n", block, block))
        products.append(block @ across)
    rows = delta.site.part.rows
    return np.concatenate(squares)[:rows], np.einsum("nr,nr->n", np.concatenate(products)[:rows], b)


def _of_columns(
    delta: Delta, base: PackedTensor, a: NDArray[np.float64], b: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    squares, products = np.zeros(base.k), np.zeros((base.k, a.shape[0]))
    begin = 0
    for block in _blocks(delta, base):
        block = block[: delta.site.part.rows - begin]
        squares += np.einsum("nk,nk->k", block, block)
        products += block.T @ a[:, begin : begin + len(block)].T
        begin += len(block)
    return squares, np.einsum("kr,kr->k", products, b)


def _blocks(delta: Delta, base: PackedTensor) -> Iterator[NDArray[np.float64]]:
    """Yield the module's rows in order, some panels at a time in one buffer; the last ones may be padding."""
    part = delta.site.part
    buffer = np.empty((BLOCK_PANELS * PANEL_ROWS, base.k))
    for begin in range(0, part.panels, BLOCK_PANELS):
        rows = base.quant.unpack(
            base.buffer,
            base.offset,
            min(BLOCK_PANELS, part.panels - begin),
            base.k,
            first_panel=part.first_panel + begin * part.panel_step,
            panel_step=part.panel_step,
        )
        block = buffer[: len(rows)]
        block[:] = rows
        yield block
