"""An adapter in the form of its files, before it is packed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from infeng_core.api.adapters import TargetModule

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Delta:
    """The low-rank part of one module: the product is ``scaling * b @ a``; an embedding's ``a`` is (rank, vocab)."""

    site: TargetModule
    a: Floats = field(repr=False)  # (rank, k)
    b: Floats = field(repr=False)  # (rows, rank)
    scaling: float
    magnitude: Floats | None = field(repr=False)  # (rows,), DoRA
    bias: Floats | None = field(repr=False)  # (rows,), of the product, multiplied by ``scaling``
    is_scaled: bool = True  # whether the scale that a user gives an adapter multiplies it


@dataclass(frozen=True)
class TrainedRows:
    """Rows of an embedding or a head that replace the base's, by token."""

    tokens: tuple[int, ...]
    rows: Floats = field(repr=False)  # (tokens, k)


@dataclass(frozen=True)
class AdapterWeights:
    """The contents of an adapter, as float32 and by module name."""

    source: Path
    base_name: str  # the model that the adapter names as its base
    deltas: Mapping[str, Delta]
    biases: Mapping[str, Floats]  # replace the base's
    saved: Mapping[str, Floats]  # matrices and norms that replace the base's
    base_weights: Mapping[str, Floats]  # embeddings and head that PEFT saved with their adapters
    invocation: tuple[int, ...] = ()  # aLoRA: tokens from whose last occurrence in a prompt on it acts; () on all
    trained: Mapping[str, TrainedRows] = field(default_factory=dict)
