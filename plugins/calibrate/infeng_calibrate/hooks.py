"""The calibrator ``text`` and the quantizer ``gptq``."""

from __future__ import annotations

from infeng_core.api import CalibratorFactory, hookimpl
from infeng_core.api.formats import Quantizer


@hookimpl
def infeng_calibrators() -> dict[str, CalibratorFactory]:
    """Return the calibrator of ``infeng convert --calibrate``."""
    from infeng_calibrate.calibrator import TextCalibrator

    return {"text": TextCalibrator}


@hookimpl
def infeng_quantizers() -> dict[str, Quantizer]:
    """Return the quantizer that uses a calibrator's statistics."""
    from infeng_calibrate.gptq import Gptq

    return {"gptq": Gptq()}
