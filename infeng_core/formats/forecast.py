"""What a conversion would make of a model, and what it would take, without making it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from infeng_core.errors import ModelError
from infeng_core.files import reading
from infeng_core.formats import native
from infeng_core.formats.checkpoints import open_checkpoint
from infeng_core.formats.choice import FormatChoice
from infeng_core.formats.packing import chosen_bytes, statistic_bytes
from infeng_core.formats.quant import FormatLookup
from infeng_core.formats.quantizers import QuantizerChoice
from infeng_core.formats.survey import parameters, weight_bytes


@dataclass(frozen=True)
class Forecast:
    """``nbytes`` of weights, in the file as in memory; ``convert_bytes`` of memory while they are made, about."""

    formats: Mapping[str, str]
    nbytes: int
    bits_per_weight: float  # all matrices and vectors, scales and padding included
    convert_bytes: int
    rounded_again: Mapping[str, str]


def forecast(
    source: Path, choice: FormatChoice, lookup: FormatLookup, quantizer: QuantizerChoice, *, is_calibrated: bool
) -> Forecast:
    """Return what ``convert`` would do with the same arguments; raises what it raises of a source and its formats."""
    if native.is_native(source):
        raise ModelError(f"{source}", "is converted already", "give the original model")
    with reading(source):
        checkpoint = open_checkpoint(source)
    layout = checkpoint.layout
    formats = checkpoint.formats(choice, lookup)
    quants = {name: lookup(format) for name, format in formats.items()}
    quantizer.require_use(quants, is_calibrated=is_calibrated)
    sizes = {spec.name: spec.panels * quants[spec.name].panel_bytes(spec.k) for spec in layout.tensors}
    nbytes = weight_bytes(layout, formats, lookup)
    needed = max(sizes.values()) + checkpoint.largest
    needed += max(chosen_bytes(spec, quants[spec.name], quantizer) for spec in layout.tensors)
    needed += statistic_bytes(layout) if is_calibrated else 0
    return Forecast(formats, nbytes, 8 * nbytes / parameters(layout), needed, checkpoint.changes(formats))
