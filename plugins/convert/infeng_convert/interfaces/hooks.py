"""The hooks of conversion. A wheel that implements one marks its function with ``hookimpl(optionalhook=True)``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from infeng_core.api import FILE_ERRORS, Hook

if TYPE_CHECKING:
    from infeng_convert.interfaces.calibrators import CalibratorFactory
    from infeng_convert.interfaces.quantizers import Quantizer
    from infeng_convert.interfaces.readers import ModelReader
    from infeng_convert.interfaces.sources import Source
    from infeng_convert.interfaces.writers import ModelWriter

MODEL_READERS: Hook[ModelReader] = Hook(
    "model_readers",
    "model reader",
    "infeng_convert.interfaces.readers:ModelReader",
    "parts",
    own="first",
    raises=FILE_ERRORS,
)
"""Readers of model files by name; the first that recognizes a path opens it, tensor by tensor."""
SOURCES: Hook[Source] = Hook("sources", "source", "infeng_convert.interfaces.sources:Source", "parts")
"""Readers of model files by name; the first that accepts a file (one that is no model directory) is used."""
MODEL_WRITERS: Hook[ModelWriter] = Hook(
    "model_writers", "model writer", "infeng_convert.interfaces.writers:ModelWriter", "parts"
)
"""Writers of model files by name; ``infeng convert`` takes the first that writes files of such a name."""
QUANTIZERS: Hook[Quantizer] = Hook("quantizers", "quantizer", "infeng_convert.interfaces.quantizers:Quantizer", "parts")
"""Quantizers, which choose the codes of integer formats, by the name that ``model.quantizer`` selects."""
CALIBRATORS: Hook[CalibratorFactory] = Hook(
    "calibrators", "calibrator", "infeng_convert.interfaces.calibrators:Calibrator", "factories", raises=FILE_ERRORS
)
"""Calibrators, which fit conversions to text, by name; ``infeng convert --calibrate`` uses ``text``."""
