"""The bytes of a converted model, one tensor after another, by statistics and a quantizer."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from infeng_convert.interfaces.calibrators import Statistics
from infeng_convert.interfaces.readers import Checkpoint
from infeng_convert.packing import chosen_bytes, gather_vector, pack_tensor, statistic_bytes
from infeng_convert.quantizers import QuantizerChoice
from infeng_convert.tensor_files import ALIGN, Entry
from infeng_core.api import available_bytes
from infeng_core.api.formats import PackedTensor, QuantFormat, TensorSpec, VectorSpec, aligned_bytes, require_memory


class Packer:
    """Makes the bytes of one tensor after another in one buffer, as large as the largest of them."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        formats: Mapping[str, QuantFormat],
        quantizer: QuantizerChoice,
        statistics: Statistics | None,
        threads: int,
    ) -> None:
        """Pack ``checkpoint`` in these formats, by tensor; raises UsageError for a quantizer without a tensor to
        quantize.

        Raises ResourceError if memory is too small.
        """
        quantizer.require_use(formats, is_calibrated=statistics is not None)
        if statistics is not None:
            statistics.begin(checkpoint)
        self.checkpoint = checkpoint
        self.formats = formats
        self.quantizer = quantizer
        self.statistics = statistics
        self.threads = threads
        self.specs: dict[str, TensorSpec | VectorSpec] = {spec.name: spec for spec in checkpoint.layout.vectors}
        self.specs |= {spec.name: spec for spec in checkpoint.layout.tensors}
        largest = max(entry.nbytes for entry in self.entries())
        chosen = max(chosen_bytes(spec, formats[spec.name], quantizer) for spec in checkpoint.layout.tensors)
        chosen += statistic_bytes(checkpoint.layout) if statistics is not None else 0
        require_memory(largest + checkpoint.largest + chosen, f"{checkpoint.directory}", available_bytes())
        self.buffer = aligned_bytes(largest)

    def panel_bytes(self, spec: TensorSpec) -> int:
        """Return the bytes of one panel of a tensor."""
        return self.formats[spec.name].panel_bytes(spec.k)

    def entries(self) -> list[Entry]:
        """Return the entries in the order of writing: vectors, then tensors as a step reads them."""
        found = []
        for name, spec in self.specs.items():
            if isinstance(spec, TensorSpec):
                shape: tuple[int, ...] = (spec.panels, self.panel_bytes(spec))
                found.append(Entry(name, "U8", shape, shape[0] * shape[1]))
            else:
                found.append(Entry(name, "F32", (padded_bytes(spec.size) // 4,), padded_bytes(spec.size)))
        return found

    def place(self, entry: Entry) -> NDArray[np.uint8]:
        """Return memory for one entry, a view of the buffer."""
        return self.buffer[: entry.nbytes]

    def take(self, entry: Entry, data: NDArray[np.uint8]) -> None:
        """Receive the bytes of an entry from an earlier attempt, as if they had just been made."""
        spec = self.specs[entry.name]
        if self.statistics is None:
            return
        if isinstance(spec, TensorSpec):
            self.statistics.put(self._packed(spec, data))
        else:
            self.statistics.vector(spec.name, data.view(np.float32)[: spec.size])

    def fill(self, entry: Entry) -> NDArray[np.uint8]:
        """Return the bytes of one entry, a view of the buffer."""
        spec, out = self.specs[entry.name], self.place(entry)
        if isinstance(spec, TensorSpec):
            self._pack(spec, out)
        else:
            values = gather_vector(spec, self.checkpoint)
            if self.statistics is not None:
                self.statistics.vector(spec.name, values)
            out[:] = 0
            out[: spec.size * 4] = values.view(np.uint8)
        return out

    def _pack(self, spec: TensorSpec, out: NDArray[np.uint8]) -> None:
        format = self.formats[spec.name]
        if self.statistics is None:
            pack_tensor(spec, self.checkpoint, format, out, self.threads, self.quantizer)
            return
        told = self.statistics.of(spec.name, format)
        pack_tensor(spec, self.checkpoint, format, out, self.threads, self.quantizer, told)
        self.statistics.put(self._packed(spec, out))

    def _packed(self, spec: TensorSpec, data: NDArray[np.uint8]) -> PackedTensor:
        format = self.formats[spec.name]
        return PackedTensor(
            spec.name, format.name, spec.n, spec.k, spec.panels, self.panel_bytes(spec), data, 0, format
        )


def padded_bytes(size: int) -> int:
    """Return the bytes that a vector of ``size`` float32 takes in the file."""
    return -(-size * 4 // ALIGN) * ALIGN
