"""Losses by tensor: each group of the candidate's tensors alone in the reference's model."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from infeng_core.api import BACKENDS, Engine, EngineConfig, UsageError
from infeng_core.api.engines import device_of
from infeng_core.api.formats import LoadedModel
from infeng_core.api.kernels import Selector
from infeng_quality.scoring import Progress, Scores
from infeng_quality.teacher import Teacher
from infeng_quality.texts import Window

TOKENS = 8192
"""Default number of tokens on which each group is measured."""

CACHE = "kv_cache"


def groups(formats: Mapping[str, str], reference: Mapping[str, str], each: bool) -> dict[str, list[str]]:
    """Return the tensors of different formats by group: one per tensor (``each``), or one per tensor of all layers."""
    found: dict[str, list[str]] = {}
    for name, format in formats.items():
        if format != reference[name]:
            found.setdefault(name if each else re.sub(r"^layers\.\d+\.", "layers.*.", name), []).append(name)
    return found


def check(reference: LoadedModel, candidate: LoadedModel) -> None:
    """Raise UsageError if the candidate's tensors cannot replace the reference's."""
    same = reference.tensors.keys() == candidate.tensors.keys() and all(
        (tensor.n, tensor.k) == (candidate.tensors[name].n, candidate.tensors[name].k)
        for name, tensor in reference.tensors.items()
    )
    same = same and reference.vectors.keys() == candidate.vectors.keys()
    if not same or any(not np.array_equal(one, candidate.vectors[name]) for name, one in reference.vectors.items()):
        why = "its tensors are not those of the reference in other formats"
        raise UsageError("--by-tensor", why, "leave it out, or compare with the model that it was converted from")


@contextmanager
def _running(engine: Engine, model: LoadedModel, config: EngineConfig) -> Iterator[Teacher]:
    """Yield a teacher of a model in memory, compiled under ``config``."""
    backend = engine.plugins.get(BACKENDS, config.backend.use)
    selector = None
    if backend.uses_kernels:
        selector = Selector(engine.plugins, config, engine.cpu, device_of(backend, config))
    executable = backend.compile(model, config, engine.limits, selector)
    if selector is not None:
        selector.close()
    try:
        yield Teacher(executable, engine.limits)
    finally:
        executable.close()


def by_tensor(
    reference: Engine, candidate: Engine, windows: Sequence[Window], each: bool, progress: Progress
) -> list[dict[str, Any]]:
    """Return the KL of each group of tensors alone, with everything else at f32; the cache is a group too.

    Tensors keep the candidate's bytes. Sorted by KL, the largest first. Raises UsageError if they do not fit.
    """
    check(reference.model, candidate.model)
    config = reference.config
    chosen = groups(candidate.model.formats_used, reference.model.formats_used, each)
    jobs: list[tuple[str, LoadedModel, EngineConfig, dict[str, Any]]] = []
    for name, names in chosen.items():
        tensors = {**reference.model.tensors, **{one: candidate.model.tensors[one] for one in names}}
        formats = {**reference.model.formats_used, **{one: candidate.model.formats_used[one] for one in names}}
        stored: dict[str, Any] = {"format": ", ".join(sorted({formats[one] for one in names}))}
        stored["bytes"] = sum(tensors[one].nbytes for one in names)
        jobs.append((name, replace(reference.model, tensors=tensors, formats_used=formats), config, stored))
    if (dtype := candidate.config.kv_cache.dtype) != config.kv_cache.dtype:
        jobs.append((CACHE, reference.model, replace(config, kv_cache=candidate.config.kv_cache), {"format": dtype}))
    ours = Teacher(reference.executable, reference.limits)
    found = []
    for name, model, settings, stored in jobs:
        with _running(reference, model, settings) as theirs:
            scores = Scores.of(ours, theirs, windows, progress)
        (_, difference, kl, same), _ = scores.intervals(1000, 0)
        line = {"tensor": name, **stored, "kl": kl.to_dict(), "nll_difference": difference.to_dict()}
        found.append(line | {"top1": same.value})
    return sorted(found, key=lambda line: -line["kl"]["value"])


def count(reference: Engine, candidate: Engine, each: bool) -> int:
    """Return the number of groups."""
    formats = groups(candidate.model.formats_used, reference.model.formats_used, each)
    return len(formats) + (candidate.config.kv_cache.dtype != reference.config.kv_cache.dtype)
