"""What an adapter is, and whether a base of some shape can run it, without reading the base's weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from infeng_core.errors import AdapterError, ModelError
from infeng_core.formats.adapters.artifact import FILE, read_artifact, shapes_of
from infeng_core.formats.adapters.image import Pieces
from infeng_core.formats.adapters.load import find_adapter
from infeng_core.formats.adapters.packed import AdapterDtype
from infeng_core.formats.adapters.spec import AdapterSpec, PartSpec
from infeng_core.formats.adapters.target_modules import EMBED, TargetModules, target_modules
from infeng_core.formats.adapters.weights import AdapterWeights
from infeng_core.formats.format_choice import FormatChoice
from infeng_core.formats.loader import locate
from infeng_core.formats.providers import CORE, Providers
from infeng_core.formats.quant import FormatLookup
from infeng_core.formats.safetensors import read_header
from infeng_core.formats.survey import survey
from infeng_core.formats.tensors import LoadedModel
from infeng_core.models.config import ModelConfig
from infeng_core.models.typed_fields import show


@dataclass(frozen=True)
class AdapterSurvey:
    """One adapter over one base. What is not known is empty; ``why_not`` says why it does not fit, "" where it does."""

    path: Path
    ranks: tuple[int, ...] = ()  # those of its modules, smallest first
    targets: Mapping[str, int] = field(default_factory=dict)  # "q_proj": in how many modules of that name
    nbytes: int = 0  # packed, without matrices that replace the base's
    dtype: str = ""  # of the packed numbers
    base_name: str = ""  # the model that it was trained on, as it says
    needs_this_very_base: bool = False  # an artifact with DoRA, biases or saved matrices: its base's weights decide
    why_not: str = ""


def survey_adapter(
    reference: str, base: ModelConfig, dtype: AdapterDtype, providers: Providers = CORE
) -> AdapterSurvey:
    """Look at an adapter: a path that a reader of ``providers`` knows, or a name. dtype: of the engine's adapters.

    Whatever is wrong with it, or keeps it from running over ``base``, is in the answer.
    """
    path = Path(reference)
    try:
        path, reader = find_adapter(reference, providers)
        if reader is None:
            return _artifact(path, base, dtype)
        return _read(path, reader.read(path, base), base, dtype)
    except AdapterError as error:
        return AdapterSurvey(path, why_not=str(error))


def shape_of(base: str, choice: FormatChoice, lookup: FormatLookup, providers: Providers = CORE) -> ModelConfig:
    """Return the configuration of a base; of a name it alone is fetched. Raises ModelError for what is no model."""
    path = Path(base).expanduser()
    found = None if path.exists() else locate(base, providers, "configuration")
    made = survey(found or path, choice, lookup, needs_weights=False, plugins=providers)
    if made.config is None:
        raise ModelError(f"--base {base}", made.why_not or "it is no model", "give the model that answers")
    return made.config


def _read(path: Path, adapter: AdapterWeights, base: ModelConfig, dtype: AdapterDtype) -> AdapterSurvey:
    spec = _spec(adapter, target_modules(base), dtype)
    ranks = tuple(sorted({delta.a.shape[0] for delta in adapter.deltas.values()}))
    modules = [delta.site.target for delta in adapter.deltas.values()] + [*adapter.saved]
    return AdapterSurvey(path, ranks, _targets(modules), _packed_bytes(spec, base), dtype, adapter.base_name)


def _artifact(path: Path, base: ModelConfig, dtype: AdapterDtype) -> AdapterSurvey:
    found = read_artifact(path)
    spec, known = found.spec, target_modules(base)
    ranks = {part.rank for parts in spec.tensors.values() for part in parts if part.rank}
    ranks |= {spec.embedding.rank} if spec.embedding is not None else set()
    return AdapterSurvey(
        path,
        tuple(sorted(ranks)),
        _targets(_modules(spec, known)),
        sum(info.nbytes for info in read_header(path / FILE).tensors.values()),
        spec.dtype,
        found.base_name,
        spec.is_bound,
        _why_not(found.shapes, spec, base, dtype),
    )


def _why_not(shapes: Mapping[str, object], spec: AdapterSpec, base: ModelConfig, dtype: AdapterDtype) -> str:
    differing = ((name, value) for name, value in shapes_of(base).items() if shapes.get(name) != value)
    for name, value in differing:
        return f"its base has {name} = {show(shapes.get(name))}, this one has {value}"
    if spec.dtype != dtype:
        return f"it is stored as {spec.dtype}, the engine's adapters are {dtype}: set adapters.dtype to {spec.dtype}"
    return ""


def _modules(spec: AdapterSpec, known: TargetModules) -> list[str]:
    """Return the modules that an artifact changes; of a tensor that the base does not have, the tensor's name."""
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
    """Return how many modules have each last part of a name, such as "q_proj"."""
    return dict(sorted(Counter(module.rpartition(".")[2] for module in set(modules)).items()))


def _spec(adapter: AdapterWeights, known: TargetModules, dtype: AdapterDtype) -> AdapterSpec:
    """Return what the adapter's low-rank parts, scales and biases are when they are packed."""

    def part(module: str) -> PartSpec:
        delta, is_changed = adapter.deltas.get(module), module in adapter.biases
        if delta is None:
            return PartSpec(bias=is_changed)
        return PartSpec(
            delta.a.shape[0], delta.scaling, delta.magnitude is not None, is_changed or delta.bias is not None
        )

    tensors: dict[str, list[PartSpec]] = {}
    embedding: PartSpec | None = None
    for site in known.matrices.values():
        if site.kind != "embedding":
            tensors.setdefault(site.tensor, []).append(part(site.module))
        elif site.module in adapter.deltas:
            embedding = part(site.module)
    filled = {name: tuple(parts) for name, parts in tensors.items() if not all(one.is_empty for one in parts)}
    return AdapterSpec(dtype, filled, embedding)


def _packed_bytes(spec: AdapterSpec, base: ModelConfig) -> int:
    """Return the bytes of a packed adapter. They follow from the shape of its base, so the base has no tensors here."""
    shape = LoadedModel(base, Path(), {}, {}, Path(), {}, 0, "")
    return Pieces(spec, shape).total
