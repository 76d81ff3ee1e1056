"""An adapter as its files hold it, before it is packed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from infeng_core.formats.adapters.target_modules import TargetModule

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Delta:
    """The low-rank part of one module: the product is ``scaling * b @ a``; an embedding's ``a`` is (rank, vocab)."""

    site: TargetModule
    a: Floats = field(repr=False)  # (rank, k)
    b: Floats = field(repr=False)  # (rows, rank)
    scaling: float
    magnitude: Floats | None = field(repr=False)  # (rows,), DoRA
    bias: Floats | None = field(repr=False)  # (rows,), of the product, to be multiplied by ``scaling``


@dataclass(frozen=True)
class AdapterWeights:
    """All that an adapter holds, as float32 and by module name."""

    source: Path
    base_name: str  # the model that it was trained on, as it says
    deltas: Mapping[str, Delta]
    biases: Mapping[str, Floats]  # that take the place of the base's
    saved: Mapping[str, Floats]  # matrices and norms that take the place of the base's
    base_weights: Mapping[str, Floats]  # embeddings and head below their adapters, where PEFT saved them too
