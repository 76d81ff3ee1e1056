"""Weight formats: packing of a matrix into 16-row panels, by a wheel or by the format's own library."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from infeng_core import _native
from infeng_core.errors import UsageError, unknown_key_remedy
from infeng_core.formats.floats import widened
from infeng_core.formats.packing import Codes, Units, packer
from infeng_core.formats.rotation import LARGEST, SIZE, largest_block, rotated, rotated_inputs

ROW = _native.ROW_GROUP
"""The group of int8 rows with one scale each, larger than any row."""

ActFormat = Literal["f32", "int8-g64", "int8-g128", "int8-g256", "int8-row"]
ACT_GROUPS: dict[int, ActFormat] = {64: "int8-g64", 128: "int8-g128", 256: "int8-g256", ROW: "int8-row"}
"""Inputs that share a scale in a kernel's int8 rows, and the name of such rows in problems."""


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
    """The stored form of a row in an integer format: codes in [``low``, ``high``], and a scale per ``group`` inputs.

    A weight is ``scale * code``, its scale rounded to ``scale``: choose codes for ``scales.astype(grid.scale)``. With
    ``sub``, SubGrid has the formula.
    """

    group: int  # all inputs of the row if the format has one scale per output
    low: int
    high: int
    scale: np.dtype[Any]  # float16 or float32
    sub: SubGrid | None = None  # of formats with integer sub-scales, which have one scale per output

    def groups(self, k: int) -> int:
        """Return how many scales a row of ``k`` inputs has."""
        return -(-k // self.group)


@dataclass(frozen=True)
class MinimaGrid:
    """Bytes that a format stores for each ``group`` inputs, under two fp16 scales for each ``superblock`` inputs.

    A weight is ``scale * sub_scale * code - minimum_scale * minimum``, codes in [0, 15], sub-scales and minima in [0,
    255].
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
class MatrixContext:
    """What is known of a matrix that is packed, beside its values. Later versions may add fields; None: not known."""

    tensor: str | None = None  # the packed tensor that contains it: "layers.3.qkv_proj"
    part: str | None = None  # its name in the checkpoint: "model.layers.3.self_attn.q_proj.weight"
    expert: int | None = None
    moments: NDArray[np.float64] | None = None  # X'X / m, (k, k), of m rows X of calibration text, the matrix's inputs

    @property
    def layer(self) -> int | None:
        """The layer's number; None outside the layers, such as for the embedding."""
        found = _IN_LAYER.match(self.tensor or "")
        return int(found[1]) if found else None

    @property
    def role(self) -> str | None:
        """The tensor's name in its layer, such as "qkv_proj"; outside the layers its whole name."""
        return None if self.tensor is None else _IN_LAYER.sub("", self.tensor)


_IN_LAYER = re.compile(r"layers\.(\d+)\.")


@dataclass(frozen=True)
class QuantFormat:
    """A weight format, named as in manifests and in the ABI.

    ``activation`` is the input of a linear op over it: f32 rows, or int8 rows with one scale per group of 64, 128 or
    256 inputs or per row. ``is_rotated``: the inputs are rotated in blocks before they are rounded, and so are the
    weights; floats that enter or leave this class are not. ``layout`` is the format with the same bytes, "" its own.

    A kernel library describes its own formats; one in Python comes through the hook ``infeng_quant_formats``, as an
    instance of a subclass. ``sees_context``: ``pack`` takes the further argument ``context``, a MatrixContext or None.
    """

    name: str
    activation: ActFormat
    is_rotated: bool = False
    layout: str = ""

    @property
    def sees_context(self) -> bool:
        """Whether ``pack`` takes ``context``."""
        return False

    @property
    def stored(self) -> str:
        """The name of the format with the same bytes."""
        return self.layout or self.name

    @property
    def group(self) -> int:
        """How many inputs share a scale in the int8 rows that a linear op reads."""
        return next((group for group, act in ACT_GROUPS.items() if act == self.activation), 64)

    def rotation(self, k: int) -> int:
        """Return how many of ``k`` inputs are rotated together; 0 if none are.

        With a scale for each group the block is 64; with one for a row it is the largest of 64, 128 and 256 that
        divides k.
        """
        if not self.is_rotated:
            return 0
        return largest_block(k) if self.group == ROW else SIZE

    @property
    def is_float(self) -> bool:
        """Whether weights stay floating point."""
        return self.activation == "f32"

    def panel_bytes(self, k: int) -> int:
        """Return the bytes of one panel over ``k`` inputs, a multiple of 64."""
        return _native.panel_bytes(self.stored, k)

    def grid(self, k: int) -> Grid | None:
        """Return the grid of rows of ``k`` inputs; None if codes and scales cannot be given, as for floats."""
        if self.stored not in _native.WEIGHT_FORMATS:
            return None
        if sub := _native.sub_grid(self.stored):
            return Grid(k, 0, sub.most_code, np.dtype(np.float32), SubGrid(sub.group, sub.most_scale))
        return _grid(self.stored, k)

    @property
    def minima(self) -> MinimaGrid | None:
        """The grid of a format with minima; None for others. No quantizer is asked for one."""
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
        if self.is_rotated:
            source, bf16 = rotated(widened(source), self.rotation(source.shape[1])), False
        packer().pack(
            self.stored,
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
        """Lay out ``codes``, (n, k), and ``scales``, (n, groups), in the layout of ``pack``.

        For a rotated format they are codes of rotated weights.

        sub_scales, zeros: (n, sub-groups), of a format whose grid has ``sub``. Raises NativeError "out_of_range" for
        a code off the grid or a scale too large for its type, "not_finite" for another scale, "invalid_argument" for
        types and shapes.
        """
        place = {"first_panel": first_panel, "panel_step": panel_step, "threads": threads}
        if sub_scales is not None and zeros is not None:
            packer().pack_units(self.stored, codes, scales, sub_scales, zeros, out, **place)
        else:
            packer().pack_codes(self.stored, codes, scales, out, **place)

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
        """Lay out a format with minima: codes, (n, k), both scales, (n, superblocks), the rest (n, groups).

        Raises NativeError as ``pack_codes`` does.
        """
        place = {"first_panel": first_panel, "panel_step": panel_step, "threads": threads}
        packer().pack_minima(self.name, codes, scales, minimum_scales, sub_scales, minima, out, **place)

    def unpack_codes(
        self, data: Any, offset: int, panels: int, k: int, *, first_panel: int = 0, panel_step: int = 1
    ) -> Codes:
        """Return codes, (panels * 16, k), and scales, (panels * 16, groups), of a grid without sub-scales."""
        place = {"first_panel": first_panel, "panel_step": panel_step}
        return Codes(*packer().unpack_codes(self.stored, data, offset, panels, k, **place))

    def unpack_units(
        self, data: Any, offset: int, panels: int, k: int, *, first_panel: int = 0, panel_step: int = 1
    ) -> Units:
        """Return codes, scales (panels * 16, 1), sub-scales and zero points, of a grid with sub-scales."""
        place = {"first_panel": first_panel, "panel_step": panel_step}
        return Units(*packer().unpack_units(self.stored, data, offset, panels, k, **place))

    def unpack(
        self, data: Any, offset: int, panels: int, k: int, *, first_panel: int = 0, panel_step: int = 1
    ) -> NDArray[np.float32]:
        """Return ``panels`` panels as (panels * 16, k) float32: the values that kernels compute with, rotated back."""
        made = _native.unpack(self.stored, data, offset, panels, k, first_panel=first_panel, panel_step=panel_step)
        return rotated_inputs(made, self.rotation(k)) if self.is_rotated else made

    def check(self, data: Any, offset: int, panels: int, k: int, *, threads: int = 1) -> None:
        """Check the panels of an untrusted file for bytes that no conversion writes, on which kernels may differ.

        Numbers must be finite. Raises NativeError "out_of_range" or "not_finite" naming row and column.
        """
        if self.stored in _native.WEIGHT_FORMATS:
            _native.check_panels(self.stored, data, offset, panels, k, threads=threads)


BUILTIN = {name: QuantFormat(name, activation) for name, activation in _native.WEIGHT_FORMATS.items()}


def over(format: QuantFormat, group: int = 64, *, is_rotated: bool = False) -> QuantFormat:
    """Return the format of the same bytes whose linears read groups of ``group`` inputs, rotated or not.

    "int4-p32" becomes "int4-p32-a128-h64". Rows with one scale (``ROW``) are always rotated, because one outlier would
    cost the whole row its precision: "int4-p32-arow-h256". Raises UsageError for a format whose kernels multiply after
    every 64 inputs.
    """
    plain, known = BUILTIN.get(format.stored), variable_formats(group)
    if plain is None or plain.name not in known:
        why = "only formats with integer sub-scales have wider groups or a rotation, and int8-row has rows"
        raise UsageError(f"weight format {format.name}", why, f"choose one of {', '.join(known)}")
    if group == ROW:
        name, is_rotated = f"{plain.name}-arow-h{LARGEST}", True
    else:
        name = plain.name + (f"-a{group}" if group != 64 else "") + (f"-h{SIZE}" if is_rotated else "")
    return plain if name == plain.name else QuantFormat(name, ACT_GROUPS[group], is_rotated, plain.name)


def variable_formats(group: int) -> tuple[str, ...]:
    """Return the built-in formats whose linears may read groups of ``group`` inputs, rotated or not."""
    return (*SUB_SCALED, *ROW_SCALED) if group == ROW else SUB_SCALED


def misfit(name: str, k: int, format: QuantFormat) -> str:
    """Return why the tensor ``name`` over ``k`` inputs cannot have a format with wide or rotated groups; "" if it
    can.

    Embeddings are looked up, not multiplied; as a tied head they read groups of 64.
    """
    if not format.layout:
        return ""
    if name == "embed":
        return "its inputs are rounded in groups of 64, as they are"
    if format.group == ROW and k > _native.MOST_ROW_INPUTS:
        return f"the products of its {k} inputs do not fit in 32 bits, {_native.MOST_ROW_INPUTS} do"
    return f"its {k} inputs are no multiple of {SIZE}" if format.is_rotated and k % SIZE else ""


SUB_SCALED = tuple(name for name in BUILTIN if _native.sub_grid(name) is not None)
"""The formats whose linears may read wide or rotated groups."""

ROW_SCALED = ("int8-row",)
"""Formats whose linears may read rows with one scale, but no wide groups."""

VARIANTS = {
    made.name: made
    for name in (*SUB_SCALED, *ROW_SCALED)
    for group in (ACT_GROUPS if name in SUB_SCALED else (ROW,))
    for is_rotated in (False, True)
    if (made := over(BUILTIN[name], group, is_rotated=is_rotated)).layout
}
"""Formats that read other activations than int8 in groups of 64, by name."""


@dataclass(frozen=True)
class LibraryFormat(QuantFormat):
    """A weight format of a kernel library, whose functions pack, unpack and write it."""

    @property
    def sees_context(self) -> bool:
        """Whether ``pack`` takes ``context``."""
        return True

    def grid(self, k: int) -> Grid | None:
        """Return the grid of rows of ``k`` inputs; None if only the library chooses codes and scales."""
        return _grid(self.name, k)

    def pack(
        self,
        source: NDArray[Any],
        out: NDArray[np.uint8],
        *,
        bf16: bool = False,
        first_panel: int = 0,
        panel_step: int = 1,
        threads: int = 1,
        context: MatrixContext | None = None,
    ) -> None:
        """Pack as ``QuantFormat.pack`` does; the library sees the matrix as float32, and its ``context``.

        NativeError may have the code of any status that the library returns.
        """
        place: dict[str, Any] = {"first_panel": first_panel, "panel_step": panel_step, "threads": threads}
        packer().pack(self.name, widened(source), out, context=context, **place)


def _grid(name: str, k: int) -> Grid | None:
    found = _native.code_grid(name)
    if found is None:
        return None
    return Grid(found.group or k, found.lowest, found.highest, np.dtype(found.scale_type))


def formats_of_library(library: _native.Library) -> dict[str, QuantFormat]:
    """Return the weight formats that an opened library defines or reads; its functions pack and unpack them."""
    return {name: LibraryFormat(name, _native.activation(name)) for name in library.formats}


FormatLookup = Callable[[str], QuantFormat]
"""Returns the format of a name; raises an InfengError that lists the known ones."""


def builtin_format(name: str) -> QuantFormat:
    """Return a built-in format; raises UsageError for another name."""
    if name not in BUILTIN and name not in VARIANTS:
        raise UsageError(f"weight format {name!r}", "unknown", unknown_key_remedy(name, BUILTIN))
    return BUILTIN.get(name) or VARIANTS[name]
