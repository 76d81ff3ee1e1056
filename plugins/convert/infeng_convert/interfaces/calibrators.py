"""The interface of a calibrator: text, its statistics, and the loss of each format of each tensor on it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from infeng_convert.interfaces.quantizers import Moments
from infeng_convert.interfaces.readers import Checkpoint
from infeng_core.api.formats import PackedTensor, QuantFormat

CalibratorFactory = Callable[..., Any]
"""Called once by a conversion as ``factory(config: EngineConfig, plugins: Plugins)``; returns a ``Calibrator``."""

Losses = Mapping[str, Mapping[str, float]]
"""The loss of each format of each tensor, {tensor: {format: loss}}; losses of several tensors add up."""


@dataclass(frozen=True)
class Text:
    """The identity of calibration text: equal for equal token ids with equal cuts."""

    source: str  # "auto", drawn from the model itself, or "file"
    tokens: int
    sha256: str


@dataclass(frozen=True)
class CalibrationSample:
    """Calibration text as token ids, and its origin: ``auto`` or ``file``."""

    source: str
    ids: Sequence[NDArray[np.int32]]  # of each text, (tokens,)

    @property
    def text(self) -> Text:
        """The identity of the text."""
        return Text(self.source, sum(map(len, self.ids)), digest(self.ids))


class Statistics(Protocol):
    """A calibrator's statistics of the inputs of each matrix, for a quantizer."""

    few_rows: dict[str, int]
    """How many experts of a tensor got so few rows that these say too little of them."""

    def begin(self, checkpoint: Checkpoint) -> None:
        """Start again, with this model."""

    def vector(self, name: str, values: NDArray[np.float32]) -> None:
        """Take a vector of the model; all of them come before the first tensor."""

    def of(self, tensor: str, format: QuantFormat) -> Moments:
        """Return the statistics of the rows that each part of a packed tensor multiplies, or None if they are unknown.

        X is what its kernels read: floats, or int8 rows in the groups of ``format``, rotated where it is.
        """

    def put(self, tensor: PackedTensor) -> None:
        """Take a tensor as it will be served; its memory changes afterwards."""


class Calibrator(Protocol):
    """Fits conversions to text. Registered by name, as a factory, through the hook ``infeng_calibrators``."""

    def sample(self, text: str, source: Path) -> CalibrationSample:
        """Return token ids of the file ``text``, or for "auto" of text that the model ``source`` generates.

        Raises UsageError for a file that is no text. Equal calls give equal ids: a conversion is reproducible.
        """

    def statistics(self, sample: CalibrationSample, *, aims: bool) -> Statistics:
        """Return statistics of each matrix's inputs for a quantizer; aims: include their drift."""

    def losses(
        self,
        sample: CalibrationSample,
        checkpoint: Checkpoint,
        formats: Sequence[str],
        progress: Callable[[int], object],
    ) -> Losses:
        """Return the loss of each of ``formats`` for each tensor of the layers alone; losses of several tensors add
        up.

        ``progress`` is called with the bytes of bfloat16 weights, as packed, that each stage has read.
        """


def digest(texts: Sequence[NDArray[np.int32]]) -> str:
    """Return the identity of texts: equal for equal ids with equal cuts."""
    made = hashlib.sha256()
    for text in texts:
        made.update(len(text).to_bytes(8, "little"))
        made.update(text.astype("<i4").tobytes())
    return made.hexdigest()
