"""The calibrator ``text`` and the quantizer ``gptq``."""

from __future__ import annotations

from infeng_convert.api import CalibratorFactory, Quantizer

from infeng_core.api import hookimpl


@hookimpl(optionalhook=True)
def infeng_calibrators() -> dict[str, CalibratorFactory]:
    """Return the calibrator of ``infeng convert --calibrate``."""
    from infeng_calibrate.calibrator import TextCalibrator

    return {"text": TextCalibrator}


@hookimpl(optionalhook=True)
def infeng_quantizers() -> dict[str, Quantizer]:
    """Return the quantizer that uses a calibrator's statistics."""
    from infeng_calibrate.gptq import Gptq

    return {"gptq": Gptq()}
