"""What a conversion would make of a model, and what it would take, without making it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from infeng_core.errors import ModelError
from infeng_core.files import reading
from infeng_core.formats.artifacts.manifest import is_native
from infeng_core.formats.checkpoints import plan
from infeng_core.formats.packing import chosen_bytes, statistic_bytes
from infeng_core.formats.quant import QuantFormat
from infeng_core.formats.quantizers import QuantizerChoice
from infeng_core.formats.spec import ConversionSpec
from infeng_core.formats.survey import parameters, weight_bytes
from infeng_core.models.weights import Layout, layout

KEPT = 32 << 20
"""Of matrices below this many bytes the C library keeps the memory of one when they are freed: glibc's malloc does."""


@dataclass(frozen=True)
class Forecast:
    """``nbytes`` of weights, in the file as in memory; ``convert_bytes`` of memory while they are made, about.

    What the process has in memory before, its libraries, is not among them.
    """

    formats: Mapping[str, str]
    nbytes: int
    bits_per_weight: float  # all matrices and vectors, scales and padding included
    convert_bytes: int
    rounded_again: Mapping[str, str]


def forecast(spec: ConversionSpec, source: Path) -> Forecast:
    """Return what ``convert_to`` would do; raises what it raises of a source and its formats."""
    if is_native(source):
        raise ModelError(f"{source}", "is converted already", "give the original model")
    with reading(source):
        model, formats, largest, changes = _read(source, spec)
    quants = {name: spec.lookup(format) for name, format in formats.items()}
    spec.quantizer.require_use(quants, is_calibrated=spec.is_calibrated)
    nbytes = weight_bytes(model, formats, spec.lookup)
    needed = _most(model, quants, largest, spec.quantizer) + (statistic_bytes(model) if spec.is_calibrated else 0)
    return Forecast(formats, nbytes, 8 * nbytes / parameters(model), needed, changes)


def _most(model: Layout, quants: Mapping[str, QuantFormat], largest: int, quantizer: QuantizerChoice) -> int:
    """Return the most bytes at a time while tensors are made, one after another, in one buffer that grows with them.

    largest: bytes of the largest matrix as it is read; others take as much less as they have fewer values.
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
    """Return the tensors of a model, their formats, the bytes of the largest as stored, and what is rounded again.

    A configuration without weights is taken for one of a model with two bytes a value.
    """
    reader = spec.reader(source)
    if reader.has_weights(source):
        checkpoint = reader.open(source)
        formats = checkpoint.formats(spec.choice, spec.lookup)
        return checkpoint.layout, formats, checkpoint.largest, checkpoint.changes(formats)
    config, planned = plan(source, spec.choice, spec.lookup, spec.reader)
    model = layout(config)
    return model, planned, 2 * max(part.rows * one.k for one in model.tensors for part in one.parts), {}
