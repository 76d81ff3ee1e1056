"""The use of a calibrator by a conversion: measured losses, and the text's name in the quantizer's record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from infeng_convert.interfaces.calibrators import CalibrationSample, Calibrator, Losses, Text
from infeng_convert.interfaces.readers import Checkpoint
from infeng_convert.progress import Progress
from infeng_convert.quantizers import QuantizerChoice
from infeng_core.api.formats import PANEL_ROWS


def measured_losses(
    calibrator: Calibrator, sample: CalibrationSample, checkpoint: Checkpoint, formats: Sequence[str]
) -> Losses:
    """Return the losses that a calibrator measures, and show the progress."""
    read = [spec for spec in checkpoint.layout.tensors if spec.name != "lm_head"]
    with Progress(sum(2 * spec.panels * PANEL_ROWS * spec.k for spec in read), "measuring", "lines") as shown:
        return calibrator.losses(sample, checkpoint, formats, shown.update)


def resized_to(text: Text, quantizer: QuantizerChoice) -> QuantizerChoice:
    """Return a quantizer whose record, and thus the identity of the conversion, names the calibration text."""
    settings = {**quantizer.settings, "text": text.sha256, "tokens": text.tokens}
    if rules := getattr(quantizer.quantizer, "rules", None):
        settings["rules"] = rules
    return replace(quantizer, settings=settings)
