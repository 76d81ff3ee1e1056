"""Profiles: the formats that a model's tensors may have, the allocation of bits to them, and the resulting recipe."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from infeng_convert.activations import all_over, fitting
from infeng_convert.interfaces.calibrators import Losses, Text
from infeng_convert.recipes import Recipe, patterns
from infeng_core.api import UsageError
from infeng_core.api.formats import ROUTER, SUB_SCALED, FormatLookup, Layout, TensorSpec, is_router

OUTER = "int8-row"
"""The format of embeddings and head, which lose more than they save, and of every tensor outside the layers."""


@dataclass(frozen=True)
class Profile:
    """``ladder``: formats from the smallest to the largest; with several, ``budget`` is the average bits per weight."""

    name: str
    ladder: tuple[str, ...]
    budget: float | None = None
    calibrate: str = "auto"  # the default of --calibrate

    def over(self, group: int | None, *, is_rotated: bool | None) -> Profile:
        """Return the profile whose linears read groups of ``group`` inputs (None: 64), rotated or not.

        Raises UsageError if no format of the ladder can.
        """
        formats = all_over(self.ladder, group, is_rotated=is_rotated)
        return replace(self, ladder=tuple(formats[name] for name in self.ladder))

    def made(self, formats: Collection[str]) -> bool:
        """Return whether a recipe of these formats can come from this profile, over the same activations."""
        return bool(set(formats) & set(self.ladder)) and set(formats) <= {*self.ladder, OUTER, *SUB_SCALED}


PROFILES = {
    profile.name: profile
    for profile in (
        Profile("small", ("int4-p32",)),
        Profile("balanced", ("int4-p32", "int5-p32", "int6-p32"), 5.25),
        Profile("faithful", ("int6-p32", "int8-row"), 6.75),
        Profile("int8", ("int8-row",), calibrate="none"),
    )
}


def budget_of(profile: Profile, asked: float | None) -> float | None:
    """Return the bits that were asked for, or the profile's; raises UsageError if the profile has no choice."""
    if asked is None or profile.budget is not None:
        return asked if asked is not None else profile.budget
    why = f"{profile.name} stores every tensor of the layers as {profile.ladder[0]}"
    raise UsageError(f"--budget {asked:g}", why, "choose --quality balanced or faithful, or leave it out")


def is_inner(name: str) -> bool:
    """Return whether a tensor belongs to a layer, so that a budget counts it; routers are small, and bf16."""
    return name.startswith("layers.") and not is_router(name)


def weights_of(spec: TensorSpec) -> int:
    """Return how many numbers of the checkpoint a packed tensor holds."""
    return sum(part.rows for part in spec.parts) * spec.k


def bits(layout: Layout, formats: Mapping[str, str], lookup: FormatLookup) -> float:
    """Return the average bits of a weight in the layers, scales and padding included."""
    inner = [spec for spec in layout.tensors if is_inner(spec.name)]
    nbytes = sum(spec.panels * lookup(formats[spec.name]).panel_bytes(spec.k) for spec in inner)
    return 8 * nbytes / sum(map(weights_of, inner))


def allocate(
    layout: Layout, profile: Profile, budget: float | None, losses: Losses, lookup: FormatLookup
) -> dict[str, str]:
    """Return the format of every tensor: within ``budget``, with the smallest loss that a greedy choice finds.

    Every tensor of a layer starts with the profile's smallest format; the tensor that saves the most loss per
    additional byte is enlarged next. Raises UsageError if the smallest formats exceed the budget.
    """
    outer = {spec.name: ROUTER if is_router(spec.name) else OUTER for spec in layout.tensors}
    found = {name: profile.ladder[0] if is_inner(name) else format for name, format in outer.items()}
    if budget is None or len(profile.ladder) == 1:
        return found
    inner = [spec for spec in layout.tensors if is_inner(spec.name)]
    room = budget * sum(map(weights_of, inner)) / 8
    room -= sum(_size(spec, profile.ladder[0], lookup) for spec in inner)
    if room < 0:
        least = math.ceil(100 * bits(layout, found, lookup)) / 100  # a sufficient number
        remedy = f"give at least {least:.2f}, which is {profile.ladder[0]} throughout"
        raise UsageError(f"--budget {budget:g}", f"is less than the smallest format of {profile.name} takes", remedy)
    steps = [
        step for index, spec in enumerate(inner) for step in _steps(index, spec, profile, losses[spec.name], lookup)
    ]
    full: set[str] = set()  # a tensor that did not fit must not take a later step, which starts from this one
    for _, _, name, format, nbytes in sorted(steps, key=lambda step: step[:2]):
        if name in full or nbytes > room:
            full.add(name)
            continue
        found[name] = format
        room -= nbytes
    return found


def recipe_of(
    profile: Profile,
    layout: Layout,
    quantizer: str,
    lookup: FormatLookup,
    text: Text | None = None,
    measured: Callable[[], Losses] | None = None,
) -> Recipe:
    """Return the recipe of a profile for the model of ``layout``.

    ``measured`` returns its losses on ``text``; without it, typical losses are assumed. Raises UsageError for an
    impossible budget, before anything is measured.
    """
    losses = priors(layout, profile)
    found = allocate(layout, profile, profile.budget, losses, lookup)
    if profile.budget is not None and measured is not None:
        found = allocate(layout, profile, profile.budget, measured(), lookup)
    sizes = {spec.name: spec.k for spec in layout.tensors}
    found = {name: fitting(name, sizes[name], lookup(format)).name for name, format in found.items()}
    return Recipe(profile.name, patterns(found), quantizer, text, profile.budget)


def priors(layout: Layout, profile: Profile) -> Losses:
    """Return assumed losses: typical for each kind of tensor, higher in the first and last layers.

    A format of B bits costs 4^-B, the square of its step.
    """
    layers = [int(name.split(".")[1]) for name in (spec.name for spec in layout.tensors) if _LAYER.match(name)]
    last = max(layers, default=0)
    found = {}
    for spec in layout.tensors:
        if not is_inner(spec.name):
            continue
        layer = _LAYER.match(spec.name)
        weight = next((factor for part, factor in _KINDS.items() if part in spec.name), 1.0)
        weight *= 1.5 if layer and int(layer[1]) in (0, last) else 1.0
        found[spec.name] = {format: weights_of(spec) * weight * 4.0 ** -_bits_of(format) for format in profile.ladder}
    return found


_LAYER = re.compile(r"layers\.(\d+)\.")
_KINDS = {"qkv": 2.0, "down": 2.0, "o_proj": 1.5}
"""The value of a byte in each kind of tensor, relative to gate and up; v (in qkv) and down gain the most."""


def _bits_of(format: str) -> int:
    found = re.match(r"int(\d+)-", format)
    return int(found[1]) if found else 16


def _size(spec: TensorSpec, format: str, lookup: FormatLookup) -> int:
    return spec.panels * lookup(format).panel_bytes(spec.k)


def _steps(
    index: int, spec: TensorSpec, profile: Profile, losses: Mapping[str, float], lookup: FormatLookup
) -> Iterator[tuple[float, int, str, str, int]]:
    """Yield (loss per byte, index, tensor, format, bytes) of the most valuable enlargements, in descending value."""
    at = 0
    while at + 1 < len(profile.ladder):
        here = profile.ladder[at]
        best, gain = at, 0.0
        for place in range(at + 1, len(profile.ladder)):
            there = profile.ladder[place]
            more = (losses[here] - losses[there]) / (_size(spec, there, lookup) - _size(spec, here, lookup))
            if more > gain:
                best, gain = place, more
        if best == at:
            return
        there = profile.ladder[best]
        yield -gain, index, spec.name, there, _size(spec, there, lookup) - _size(spec, here, lookup)
        at = best
