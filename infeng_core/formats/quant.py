"""Weight formats: how a matrix becomes 16-row panels, by the native core or by the library that brings the format."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from infeng_core import _native
from infeng_core.errors import UsageError, unknown_key_remedy


@dataclass(frozen=True)
class SubGrid:
    """Integers that a format stores for each ``group`` inputs beside the scale of the row.

    A weight is ``scale * sub_scale * (code - zero)``: sub-scales in [1, ``high``], zero points among the grid's codes,
    and ``sub_scale * (code - zero)`` in [``lowest``, ``highest``].
    """

    group: int
    high: int
    lowest: int = -128
    highest: int = 127

    def groups(self, k: int) -> int:
        """Return how many sub-scales a row of ``k`` inputs has."""
        return -(-k // self.group)


@dataclass(frozen=True)
class Grid:
    """What an integer format stores of a row: codes in [``low``, ``high``], and a scale for each ``group`` inputs.

    A weight is ``scale * code``, its scale rounded to ``scale``: choose codes for ``scales.astype(grid.scale)``. With
    ``sub`` it is what that says.
    """

    group: int  # every input of the row where the format has one scale for each output
    low: int
    high: int
    scale: np.dtype[Any]  # float16 or float32
    sub: SubGrid | None = None  # of the formats with integer sub-scales, which have one scale for each output

    def groups(self, k: int) -> int:
        """Return how many scales a row of ``k`` inputs has."""
        return -(-k // self.group)


@dataclass(frozen=True)
class MinimaGrid:
    """Bytes that a format stores for each ``group`` inputs, under two scales in fp16 for each ``superblock`` inputs.

    A weight is ``scale * sub_scale * code - minimum_scale * minimum``, codes in [0, 15], sub-scales and minima in
    [0, 255].
    """

    group: int
    superblock: int

    def groups(self, k: int) -> int:
        """Return how many sub-scales a row of ``k`` inputs has."""
        return -(-k // self.group)

    def superblocks(self, k: int) -> int:
        """Return how many scales a row of ``k`` inputs has."""
        return -(-k // self.superblock)


@dataclass(frozen=True)
class QuantFormat:
    """A weight format, named as in manifests and in the ABI.

    ``activation`` is what a linear op over it reads: f32 rows, or int8 rows with one scale per group of 64. A kernel
    library brings its own in its description; one in Python comes through the hook ``infeng_quant_formats``, as an
    instance of a subclass.
    """

    name: str
    activation: Literal["f32", "int8-g64"]

    @property
    def is_float(self) -> bool:
        """Whether weights stay floating point."""
        return self.activation == "f32"

    def panel_bytes(self, k: int) -> int:
        """Return the bytes of one panel over ``k`` inputs, a multiple of 64."""
        return _native.panel_bytes(self.name, k)

    def grid(self, k: int) -> Grid | None:
        """Return what rows of ``k`` inputs are made of; None where codes and scales cannot be given, as of floats."""
        if self.name not in _native.WEIGHT_FORMATS:
            return None
        if sub := _native.sub_grid(self.name):
            width, most_scale, most_code = sub
            return Grid(k, 0, most_code, np.dtype(np.float32), SubGrid(width, most_scale))
        found = _native.code_grid(self.name)
        if found is None:
            return None
        group, low, high, scale = found
        return Grid(group or k, low, high, np.dtype(scale))

    @property
    def minima(self) -> MinimaGrid | None:
        """What rows of a format with minima are made of; None of others. No quantizer is asked for one."""
        found = _native.minima_grid(self.name) if self.name in _native.WEIGHT_FORMATS else None
        return None if found is None else MinimaGrid(*found)

    def pack(
        self,
        source: NDArray[Any],
        out: NDArray[np.uint8],
        *,
        bf16: bool = False,
        first_panel: int = 0,
        panel_step: int = 1,
        threads: int = 1,
    ) -> None:
        """Quantize ``source``, (n, k) float32, float16 or uint16 holding bf16, into panels of ``out``.

        Its panel i becomes panel ``first_panel + i * panel_step``. Raises NativeError "not_finite" or "out_of_range".
        """
        _native.pack(
            self.name,
            source,
            out,
            bf16=bf16,
            first_panel=first_panel,
            panel_step=panel_step,
            threads=threads,
        )

    def pack_codes(
        self,
        codes: NDArray[np.int8],
        scales: NDArray[np.float32],
        out: NDArray[np.uint8],
        *,
        sub_scales: NDArray[np.int8] | None = None,
        zeros: NDArray[np.int8] | None = None,
        first_panel: int = 0,
        panel_step: int = 1,
        threads: int = 1,
    ) -> None:
        """Lay out ``codes``, (n, k), and ``scales``, (n, groups), as ``pack`` does what it rounds itself.

        sub_scales, zeros: (n, sub-groups), of a format whose grid has ``sub``. Raises NativeError "out_of_range" for a
        code off the grid or a scale too large for its type, "not_finite" for another scale, "invalid_argument" for
        types and shapes.
        """
        place = {"first_panel": first_panel, "panel_step": panel_step, "threads": threads}
        if sub_scales is not None and zeros is not None:
            _native.pack_units(self.name, codes, scales, sub_scales, zeros, out, **place)
        else:
            _native.pack_codes(self.name, codes, scales, out, **place)

    def pack_minima(
        self,
        codes: NDArray[np.int8],
        scales: NDArray[np.float32],
        minimum_scales: NDArray[np.float32],
        sub_scales: NDArray[np.uint8],
        minima: NDArray[np.uint8],
        out: NDArray[np.uint8],
        *,
        first_panel: int = 0,
        panel_step: int = 1,
        threads: int = 1,
    ) -> None:
        """Lay out what a format with minima stores: codes, (n, k), both scales, (n, superblocks), the rest (n, groups).

        Raises NativeError as ``pack_codes`` does.
        """
        place = {"first_panel": first_panel, "panel_step": panel_step, "threads": threads}
        _native.pack_minima(self.name, codes, scales, minimum_scales, sub_scales, minima, out, **place)

    def unpack_codes(
        self, data: Any, offset: int, panels: int, k: int, *, first_panel: int = 0, panel_step: int = 1
    ) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
        """Return codes, (panels * 16, k), and scales, (panels * 16, groups), of a grid without sub-scales."""
        return _native.unpack_codes(self.name, data, offset, panels, k, first_panel=first_panel, panel_step=panel_step)

    def unpack_units(
        self, data: Any, offset: int, panels: int, k: int, *, first_panel: int = 0, panel_step: int = 1
    ) -> tuple[NDArray[np.int8], NDArray[np.float32], NDArray[np.int8], NDArray[np.int8]]:
        """Return codes, scales (panels * 16, 1), sub-scales and zero points, of a grid with sub-scales."""
        return _native.unpack_units(self.name, data, offset, panels, k, first_panel=first_panel, panel_step=panel_step)

    def unpack(
        self, data: Any, offset: int, panels: int, k: int, *, first_panel: int = 0, panel_step: int = 1
    ) -> NDArray[np.float32]:
        """Return ``panels`` panels as (panels * 16, k) float32, the values that kernels compute with."""
        return _native.unpack(self.name, data, offset, panels, k, first_panel=first_panel, panel_step=panel_step)

    def check(self, data: Any, offset: int, panels: int, k: int, *, threads: int = 1) -> None:
        """Look at panels of somebody's file for bytes that no conversion writes and that kernels need not agree on.

        Most formats have none. Raises NativeError "out_of_range" or "not_finite" that names row and column.
        """
        if self.name in _native.WEIGHT_FORMATS:
            _native.check_panels(self.name, data, offset, panels, k, threads=threads)


BUILTIN = {name: QuantFormat(name, activation) for name, activation in _native.WEIGHT_FORMATS.items()}


def brought_by(library: _native.Library) -> dict[str, QuantFormat]:
    """Return the weight formats that an opened library brings or reads; its functions pack and unpack them."""
    return {name: QuantFormat(name, _native.activation(name)) for name in library.formats}


FormatLookup = Callable[[str], QuantFormat]
"""From a format's name to the format; raises an InfengError that lists the known ones."""


def builtin_format(name: str) -> QuantFormat:
    """Return a built-in format; raises UsageError for another name."""
    if name not in BUILTIN:
        raise UsageError(f"weight format {name!r}", "unknown", unknown_key_remedy(name, BUILTIN))
    return BUILTIN[name]
