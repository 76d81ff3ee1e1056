"""The interface of a quantizer, which turns values into the codes and scales of an integer format."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from infeng_core.api.formats import Grid


@dataclass(frozen=True)
class Seen:
    """Statistics of calibration text for a matrix (m, k): ``QuantTarget`` describes each."""

    statistic: NDArray[np.float64]
    drift: NDArray[np.float64] | None = None


Moments = Callable[[int], Seen | None]
"""By expert (0 without experts), the statistics of its matrix's inputs."""


@dataclass(frozen=True)
class QuantTarget:
    """The matrix to quantize, and its format. Later versions may add fields; unknown values are None."""

    name: str  # of the checkpoint: "model.layers.3.self_attn.q_proj.weight"
    tensor: str  # the packed tensor that contains it: "layers.3.qkv_proj"
    format: str  # "int4-g64"
    grid: Grid  # the stored form of this matrix
    statistic: NDArray[np.float64] | None = None  # H = X'X / n, (k, k), of n calibration rows X, the matrix's inputs
    drift: NDArray[np.float64] | None = None  # (Y - X)'X / n, (k, k), Y the inputs in the unquantized model
    budget: int | None = None  # bytes that a recipe grants the packed tensor

    @property
    def layer(self) -> int | None:
        """The layer's number; None outside the layers, such as for the embedding."""
        found = re.match(r"layers\.(\d+)\.", self.tensor)
        return int(found[1]) if found else None


@dataclass(frozen=True)
class Quantized:
    """A matrix (n, k) in codes: weight = scale * code, or scale * sub_scale * (code - zero) where the grid has ``sub``.

    ``scales`` are (n, groups): column j belongs to inputs [j * group, (j + 1) * group) of the grid; ``zeros`` and
    ``sub_scales`` are (n, sub-groups) in the same way.
    """

    codes: NDArray[np.int8]
    scales: NDArray[np.float32]  # rounded to ``grid.scale`` when stored
    zeros: NDArray[np.int8] | None = None
    sub_scales: NDArray[np.int8] | None = None


@dataclass(frozen=True)
class WithMinima:
    """A matrix (n, k) as formats with minima hold it: weight = scale * sub_scale * code - minimum_scale * minimum."""

    codes: NDArray[np.int8]  # (n, k)
    scales: NDArray[np.float32]  # (n, superblocks), values of fp16, as ``minimum_scales``
    minimum_scales: NDArray[np.float32]
    sub_scales: NDArray[np.uint8]  # (n, groups), as ``minima``
    minima: NDArray[np.uint8]


Kept = Quantized | WithMinima
"""A checkpoint's own quantized values."""


class Quantizer(Protocol):
    """Chooses codes and scales. Registered by name through the hook ``infeng_quantizers``."""

    def quantize(self, weights: NDArray[np.float32], target: QuantTarget) -> Quantized | None:
        """Return the codes and scales of ``weights``, (n, k) and finite; None leaves it to the built-in rounding.

        A quantizer with a true attribute ``needs_statistics`` is used only by conversions that calibrate. Only one
        with a true ``knows_sub_scales`` is asked for formats whose grid has ``sub``. ``identity``, a plugin's name
        and a version, replaces the plugin's in records: a new wheel then makes the same artifacts.

        It is called once for each matrix, in the order of the layers, and may write to ``weights``. Equal matrices
        and targets must give equal results: a conversion is reproducible.
        """
