"""The interface of a calibrator: text, its statistics, and the loss of each format of each tensor on it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from infeng_core.formats.model_readers import Checkpoint
from infeng_core.formats.packer import Statistics
from infeng_core.formats.profiles import Losses
from infeng_core.formats.progress import Progress
from infeng_core.formats.quantizers import QuantizerChoice
from infeng_core.formats.recipes import Text
from infeng_core.models.weights import PANEL_ROWS


@dataclass(frozen=True)
class CalibrationSample:
    """Calibration text as token ids, and its origin: ``auto`` or ``file``."""

    source: str
    ids: Sequence[NDArray[np.int32]]  # of each text, (tokens,)

    @property
    def text(self) -> Text:
        """The identity of the text."""
        return Text(self.source, sum(map(len, self.ids)), digest(self.ids))


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


def measured_losses(
    calibrator: Calibrator, sample: CalibrationSample, checkpoint: Checkpoint, formats: Sequence[str]
) -> Losses:
    """Return a calibrator's measured losses, showing the progress."""
    read = [spec for spec in checkpoint.layout.tensors if spec.name != "lm_head"]
    with Progress(sum(2 * spec.panels * PANEL_ROWS * spec.k for spec in read), "measuring", "lines") as shown:
        return calibrator.losses(sample, checkpoint, formats, shown.update)


def digest(texts: Sequence[NDArray[np.int32]]) -> str:
    """Return the identity of texts: equal for equal ids, cut equally."""
    made = hashlib.sha256()
    for text in texts:
        made.update(len(text).to_bytes(8, "little"))
        made.update(text.astype("<i4").tobytes())
    return made.hexdigest()


def fitted_to(text: Text, quantizer: QuantizerChoice) -> QuantizerChoice:
    """Return a quantizer whose record, and thus the conversion's key, names the calibration text."""
    settings = {**quantizer.settings, "text": text.sha256, "tokens": text.tokens}
    if rules := getattr(quantizer.quantizer, "rules", None):
        settings["rules"] = rules
    return replace(quantizer, settings=settings)
