"""The calibrator ``text`` and the quantizer ``gptq``."""

from __future__ import annotations

from infeng_core.api import CalibratorFactory, hookimpl
from infeng_core.api.formats import Quantizer


@hookimpl
def infeng_calibrators() -> dict[str, CalibratorFactory]:
    """What ``infeng convert --calibrate`` uses."""
    from infeng_calibrate.calibrator import TextCalibrator

    return {"text": TextCalibrator}


@hookimpl
def infeng_quantizers() -> dict[str, Quantizer]:
    """The quantizer that reads what a calibrator tells."""
    from infeng_calibrate.gptq import Gptq

    return {"gptq": Gptq()}
