"""A calibrator that runs nothing: ``infeng convert MODEL DEST --calibrate auto`` where ``calibrate`` is disabled.

What a norm gives is as large as the norm's weights g, column by column. So of a linear op behind a norm the diagonal of
H = X'X / n is near g^2; of all others it says nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from infeng_convert.api import CalibrationSample, Checkpoint, Losses, Moments, Seen
from numpy.typing import NDArray

from infeng_core.api import EngineConfig, Plugins, UsageError, hookimpl
from infeng_core.api.formats import PackedTensor, QuantFormat

NORMS = {"qkv_proj": "attn_norm", "gate_up_proj": "mlp_norm"}
"""The norm of a layer that a packed tensor reads."""


class Weights:
    """The weights of all norms, of which each linear op is told its own."""

    def __init__(self) -> None:
        """Begin without a model."""
        self.few_rows: dict[str, int] = {}
        self._vectors: dict[str, NDArray[np.float32]] = {}

    def begin(self, checkpoint: Checkpoint) -> None:
        """Start over, for this model."""
        self._vectors.clear()

    def vector(self, name: str, values: NDArray[np.float32]) -> None:
        """Take a vector of the model; all of them come before the first tensor."""
        self._vectors[name] = values.copy()

    def of(self, tensor: str, format: QuantFormat) -> Moments:
        """Return what says of the inputs of a tensor."""
        place, _, kind = tensor.rpartition(".")
        weights = self._vectors.get(f"{place}.{NORMS.get(kind, '')}")
        seen = None if weights is None else Seen(np.diag(weights.astype(np.float64) ** 2))
        return lambda expert: seen

    def put(self, tensor: PackedTensor) -> None:
        """Take a tensor as it will be served, which changes nothing here."""


class Norms:
    """Knows ``--calibrate auto`` alone."""

    def sample(self, text: str, source: Path) -> CalibrationSample:
        """Return a sample without a token."""
        if text != "auto":
            raise UsageError(f"--calibrate {text}", "norms reads no text", "give --calibrate auto")
        return CalibrationSample("auto", [])

    def statistics(self, sample: CalibrationSample, *, aims: bool) -> Weights:
        """Return what tells a quantizer about the inputs of each matrix."""
        return Weights()

    def losses(
        self,
        sample: CalibrationSample,
        checkpoint: Checkpoint,
        formats: Sequence[str],
        progress: Callable[[int], object],
    ) -> Losses:
        """Raise UsageError: norms say nothing of what formats lose."""
        raise UsageError("--quality", "norms measures no losses", "give a --format, or --calibrate none")


@hookimpl(optionalhook=True)
def infeng_calibrators() -> dict[str, Callable[[EngineConfig, Plugins], Norms]]:
    """Return the calibrator."""
    return {"text": lambda config, plugins: Norms()}
