"""The problems that an engine over a model asks kernels for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from infeng_inspect.api import Outline, shape_and_formats

from infeng_core.api import BACKENDS
from infeng_core.api.engines import limits_of
from infeng_core.api.formats import format_lookup, use_families
from infeng_core.api.kernels import Problem, Selector

if TYPE_CHECKING:
    from infeng_kit.plan import Plan


def asked_by_model(plan: Plan, settings: Mapping[str, Any]) -> list[Problem]:
    """Return what an engine that prefers the plugin's kernels asks, over ``plan.model`` or a Llama of 1.1B.

    settings: of the engine, as ``Plan.settings`` takes them.
    """
    plugins = plan.plugins(**settings)
    config = plugins.config
    use_families(plugins)
    selector = Selector(plugins, config, plugins.cpu)
    lookup = format_lookup(plugins)
    shape, formats = shape_and_formats(plan.model, config, lookup, plugins)
    limits, _ = limits_of(config, shape, plugins.get(BACKENDS, "native"))
    asked = list(Outline(shape, formats, lookup, config, selector, limits).bound().asked)
    selector.close()
    return asked


def in_formats(weight: str | None, cache: str | None) -> dict[str, Any]:
    """Return the settings of an engine whose weights and cache have these formats; None: the default."""
    more: dict[str, Any] = {"model__format": weight, "model__formats": {}} if weight else {}
    return more | ({"kv_cache__dtype": cache} if cache else {})


def asked_in_formats(
    plan: Plan,
    op: str,
    weights: Iterable[str | None],
    caches: Iterable[str | None],
    settings: Mapping[str, Any] = MappingProxyType({}),
) -> Iterator[Problem]:
    """Yield each problem of an op that engines over the model ask in each of these formats of weights and cache.

    None stands for the engine's default format. settings: as in ``asked_by_model``.
    """
    seen: set[Problem] = set()
    for weight, cache in product(weights, caches):
        for asked in asked_by_model(plan, {**settings, **in_formats(weight, cache)}):
            if asked.op == op and asked not in seen:
                seen.add(asked)
                yield asked
