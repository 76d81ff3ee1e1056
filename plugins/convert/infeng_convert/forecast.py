"""The result and the cost of a conversion, computed without converting."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from infeng_convert.checkpoints import plan
from infeng_convert.packing import chosen_bytes, statistic_bytes
from infeng_convert.quantizers import QuantizerChoice
from infeng_convert.spec import ConversionSpec
from infeng_convert.survey import parameters, weight_bytes
from infeng_core.api import ModelError
from infeng_core.api.formats import Layout, QuantFormat, artifact_manifest, layout, reading

KEPT = 32 << 20
"""Size below which the C library keeps the memory of a freed matrix (glibc's malloc does)."""


@dataclass(frozen=True)
class Forecast:
    """``nbytes`` of weights, in the file and in memory; ``convert_bytes`` of memory during conversion, approximately.

    The memory of the process before it, such as its libraries, is not included.
    """

    formats: Mapping[str, str]
    nbytes: int
    bits_per_weight: float  # all matrices and vectors, scales and padding included
    convert_bytes: int
    rounded_again: Mapping[str, str]


def forecast(spec: ConversionSpec, source: Path) -> Forecast:
    """Return the result that ``convert_to`` would have; raises its errors about a source and its formats."""
    if artifact_manifest.is_native(source):
        raise ModelError(f"{source}", "is converted already", "give the original model")
    with reading(source):
        model, formats, largest, changes = _read(source, spec)
    quants = {name: spec.lookup(format) for name, format in formats.items()}
    spec.quantizer.require_use(quants, is_calibrated=spec.is_calibrated)
    nbytes = weight_bytes(model, formats, spec.lookup)
    needed = _most(model, quants, largest, spec.quantizer) + (statistic_bytes(model) if spec.is_calibrated else 0)
    return Forecast(formats, nbytes, 8 * nbytes / parameters(model), needed, changes)


def _most(model: Layout, quants: Mapping[str, QuantFormat], largest: int, quantizer: QuantizerChoice) -> int:
    """Return the peak bytes while tensors are made one after another in one growing buffer.

    largest: bytes of the largest matrix as it is read; others take less in proportion to their values.
    """
    values = {spec.name: spec.k * max(part.rows for part in spec.parts) for spec in model.tensors}
    widest, buffer, kept, most = max(values.values()), 0, 0, 0
    for spec in model.tensors:
        quant, read = quants[spec.name], largest * values[spec.name] // widest
        buffer = max(buffer, spec.panels * quant.panel_bytes(spec.k))
        most = max(most, buffer + kept + read + chosen_bytes(spec, quant, quantizer))
        kept = max(kept, read if read < KEPT else 0)
    return most


def _read(source: Path, spec: ConversionSpec) -> tuple[Layout, Mapping[str, str], int, Mapping[str, str]]:
    """Return the tensors of a model, their formats, the bytes of the largest as stored, and a summary of tensors
    rounded again.

    A configuration without weights counts as a model with two bytes a value.
    """
    reader = spec.reader(source)
    if reader.has_weights(source):
        checkpoint = reader.open(source)
        formats = checkpoint.formats(spec.choice, spec.lookup)
        return checkpoint.layout, formats, checkpoint.largest, checkpoint.changes(formats)
    config, planned = plan(source, spec.choice, spec.lookup, spec.reader)
    model = layout(config)
    return model, planned, 2 * max(part.rows * one.k for one in model.tensors for part in one.parts), {}
