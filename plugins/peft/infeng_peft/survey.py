"""A description of an adapter, and whether a base of some shape can run it, found without the base's weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from infeng_core.api import AdapterError, Plugins
from infeng_core.api.adapters import (
    ARTIFACT_FILE,
    EMBED,
    AdapterDtype,
    AdapterSpec,
    PartSpec,
    Pieces,
    TargetModules,
    find_adapter,
    read_artifact,
    read_header,
    shapes_of,
    stored_rank,
    target_modules,
)
from infeng_core.api.formats import LoadedModel, ModelConfig, show
from infeng_peft.reading import weights_of
from infeng_peft.weights import AdapterWeights


@dataclass(frozen=True)
class AdapterSurvey:
    """One adapter over one base. Unknown values are empty; ``why_not`` says why it does not fit, "" if it does."""

    path: Path
    ranks: tuple[int, ...] = ()  # of its modules, smallest first
    targets: Mapping[str, int] = field(default_factory=dict)  # "q_proj": the number of modules of that name
    nbytes: int = 0  # packed, without matrices that replace the base's
    dtype: str = ""  # of the packed numbers
    base_name: str = ""  # the model that the adapter names as its base
    needs_this_very_base: bool = False  # an artifact with DoRA, biases or saved matrices depends on its weights
    why_not: str = ""
    invocation: tuple[int, ...] = ()  # aLoRA: tokens from which on it acts; () on all


def survey_adapter(reference: str, base: ModelConfig, dtype: AdapterDtype, providers: Plugins) -> AdapterSurvey:
    """Examine an adapter: a path with a reader in ``providers``, or a name. dtype: of the engine's adapters.

    Errors of the adapter, and reasons why it cannot run over ``base``, are in the result.
    """
    path = Path(reference)
    try:
        path, reader = find_adapter(reference, providers)
        if reader is None:
            return _artifact(path, base, dtype)
        return _read(path, weights_of(reader, path, base), base, dtype)
    except AdapterError as error:
        return AdapterSurvey(path, why_not=str(error))


def _read(path: Path, adapter: AdapterWeights, base: ModelConfig, dtype: AdapterDtype) -> AdapterSurvey:
    spec = _spec(adapter, target_modules(base), dtype)
    ranks = tuple(sorted({delta.a.shape[0] for delta in adapter.deltas.values()}))
    modules = [*(delta.site.target for delta in adapter.deltas.values()), *adapter.saved, *adapter.trained]
    nbytes, targets = _packed_bytes(spec, base), _targets(modules)
    return AdapterSurvey(path, ranks, targets, nbytes, dtype, adapter.base_name, invocation=adapter.invocation)


def _artifact(path: Path, base: ModelConfig, dtype: AdapterDtype) -> AdapterSurvey:
    found = read_artifact(path)
    spec, known = found.spec, target_modules(base)
    ranks = {part.rank for parts in spec.tensors.values() for part in parts if part.rank}
    ranks |= {spec.embedding.rank} if spec.embedding is not None else set()
    return AdapterSurvey(
        path,
        tuple(sorted(ranks)),
        _targets(_modules(spec, known)),
        sum(info.nbytes for info in read_header(path / ARTIFACT_FILE).tensors.values()),
        spec.dtype,
        found.base_name,
        spec.is_bound,
        _why_not(found.shapes, spec, base, dtype),
        spec.invocation,
    )


def _why_not(shapes: Mapping[str, object], spec: AdapterSpec, base: ModelConfig, dtype: AdapterDtype) -> str:
    differing = ((name, value) for name, value in shapes_of(base).items() if shapes.get(name) != value)
    for name, value in differing:
        return f"its base has {name} = {show(shapes.get(name))}, this one has {value}"
    if spec.dtype != dtype:
        return f"it is stored as {spec.dtype}, the engine's adapters are {dtype}: set adapters.dtype to {spec.dtype}"
    return ""


def _modules(spec: AdapterSpec, known: TargetModules) -> list[str]:
    """Return the modules that an artifact changes; for a tensor that the base lacks, the tensor's name."""
    by_tensor: dict[str, list[str]] = {}
    for site in known.matrices.values():
        by_tensor.setdefault(site.tensor, []).append(site.target)
    found: list[str] = []
    for name, parts in spec.tensors.items():
        modules = by_tensor.get(name, [])
        pairs = zip(modules, parts, strict=False) if len(modules) == len(parts) else [(name, part) for part in parts]
        found += [module for module, part in pairs if not part.is_empty]
    found += by_tensor.get(EMBED, [EMBED]) if spec.embedding is not None else []
    return [*found, *spec.saved_tensors, *spec.saved_vectors]


def _targets(modules: list[str]) -> dict[str, int]:
    """Return the number of modules by the last part of their names, such as "q_proj"."""
    return dict(sorted(Counter(module.rpartition(".")[2] for module in set(modules)).items()))


def _spec(adapter: AdapterWeights, known: TargetModules, dtype: AdapterDtype) -> AdapterSpec:
    """Return the spec of the adapter's low-rank parts, scales and biases when packed."""

    def part(module: str) -> PartSpec:
        delta, is_changed = adapter.deltas.get(module), module in adapter.biases
        if module in adapter.trained:
            return PartSpec(len(adapter.trained[module].tokens), bias=is_changed)
        if delta is None:
            return PartSpec(bias=is_changed)
        rank = stored_rank(dtype, delta.a.shape[0])
        return PartSpec(rank, delta.scaling, delta.magnitude is not None, is_changed or delta.bias is not None)

    tensors: dict[str, list[PartSpec]] = {}
    embedding: PartSpec | None = None
    for site in known.matrices.values():
        if site.kind != "embedding":
            tensors.setdefault(site.tensor, []).append(part(site.module))
        elif site.module in adapter.deltas or site.module in adapter.trained:
            embedding = part(site.module)
    filled = {name: tuple(parts) for name, parts in tensors.items() if not all(one.is_empty for one in parts)}
    return AdapterSpec(dtype, filled, embedding)


def _packed_bytes(spec: AdapterSpec, base: ModelConfig) -> int:
    """Return the bytes of a packed adapter. They follow from the shape of its base, whose tensors are not needed."""
    shape = LoadedModel(base, Path(), {}, {}, Path(), {}, 0, "")
    return Pieces(spec, shape).total
