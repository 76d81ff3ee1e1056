"""The interface of what packs weights into panels. A wheel has it: to run a converted model nothing is packed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from infeng_core.errors import UsageError

GROUP = "infeng.packers"
"""The group of the entry point that names the module with a Packer's functions."""


class Codes(NamedTuple):
    """Of whole panels."""

    codes: NDArray[np.int8]  # (panels * 16, k)
    scales: NDArray[np.float32]  # (panels * 16, groups)


class Units(NamedTuple):
    """Of whole panels: weight = scale * sub_scale * (unit - zero)."""

    units: NDArray[np.int8]  # (panels * 16, k)
    scales: NDArray[np.float32]  # (panels * 16, 1)
    sub_scales: NDArray[np.int8]  # (panels * 16, groups)
    zeros: NDArray[np.int8]  # (panels * 16, groups)


class Packer(Protocol):
    """Packs rows by the name of a format. Its functions release the GIL, and raise NativeError.

    ``out`` is a buffer of whole panels. The keywords ``first_panel`` and ``panel_step`` say which of them are meant,
    and ``threads`` how many work.
    """

    def pack(
        self, format: str, source: NDArray[Any], out: Any, *, bf16: bool = False, context: Any = None, **place: int
    ) -> None:
        """Quantize and lay out rows, (n, k). A library's format sees ``context``, a MatrixContext or None."""

    def pack_codes(
        self, format: str, codes: NDArray[np.int8], scales: NDArray[np.float32], out: Any, **place: int
    ) -> None:
        """Lay out codes and scales that are known already."""

    def pack_units(
        self, format: str, units: NDArray[np.int8], scales: NDArray[np.float32], sub_scales: NDArray[np.int8],
        zeros: NDArray[np.int8], out: Any, **place: int,
    ) -> None:  # fmt: skip
        """Lay out codes of a format with integer sub-scales."""

    def pack_minima(
        self, format: str, units: NDArray[np.int8], scales: NDArray[np.float32], minimum_scales: NDArray[np.float32],
        sub_scales: NDArray[np.uint8], minima: NDArray[np.uint8], out: Any, **place: int,
    ) -> None:  # fmt: skip
        """Lay out codes of a format with minima."""

    def unpack_codes(self, format: str, data: Any, offset: int, panels: int, k: int, **place: int) -> Sequence[Any]:
        """Return the fields of ``Codes``."""

    def unpack_units(self, format: str, data: Any, offset: int, panels: int, k: int, **place: int) -> Sequence[Any]:
        """Return the fields of ``Units``."""


@cache
def packer() -> Packer:
    """Return what packs weights; raises UsageError that names the wheel if it is not installed."""
    from importlib.metadata import entry_points  # takes a while, and to run a model nothing is packed

    for entry in entry_points(group=GROUP):
        found: Packer = entry.load()
        return found
    raise UsageError("weights", "nothing that is installed packs them", "install the wheel infeng-packing")
