"""The tensors of a safetensors file that others may be writing, as numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from infeng_core.api import AdapterError
from infeng_core.api.adapters import Header, Snapshot
from infeng_core.api.formats import widened

FLOATS: dict[str, Any] = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}
"""NumPy's types of the kinds of number that adapters have."""


class TensorFile:
    """The tensors of a file whose header was checked, all read into memory."""

    def __init__(self, files: Snapshot, path: Path, header: Header) -> None:
        """Read the data; raises ModelError."""
        self.path = path
        self.header = header
        end = max((info.begin + info.nbytes for info in header.tensors.values()), default=header.data_begin)
        self._data = files.data(path, header.data_begin, end - header.data_begin)

    def floats(self, name: str) -> NDArray[np.float32]:
        """Return a tensor as float32; raises AdapterError for another kind of number, NaN and infinity."""
        info = self.header.tensors[name]
        if info.dtype not in FLOATS:
            raise AdapterError(
                f"{self.path}", f"tensor {name} is {info.dtype}, it must be F32, F16 or BF16", "save the adapter again"
            )
        dtype: Any = np.dtype(FLOATS[info.dtype])
        begin = info.begin - self.header.data_begin
        array = self._data[begin : begin + info.nbytes]
        if begin % dtype.itemsize:
            array = array.copy()
        values = array.view(dtype).reshape(info.shape)
        wide = values if values.dtype == np.float32 else widened(values)
        if not np.isfinite(wide).all():
            at = tuple(int(i) for i in np.argwhere(~np.isfinite(wide))[0])
            why = f"tensor {name} holds {wide[at]} at {at}"
            raise AdapterError(f"{self.path}", why, "the training diverged or the file is damaged: use another copy")
        return wide
