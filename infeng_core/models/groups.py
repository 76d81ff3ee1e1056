"""Groups of layers that share cache blocks: layers with full attention, and layers with a window.

A block holds 16 positions of as many layers as a group has places, so all groups take blocks of one size from one
pool. A layer with a window keeps only the blocks of its window; a long text's other blocks are free for other uses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from infeng_core.models.config import ModelConfig

MOST_PADDING = 0.125
"""Largest share of layers that places without a layer may add to a block's bytes."""


class LayerGroup(NamedTuple):
    """Layers whose blocks are allocated and freed together."""

    window: int
    """The widest attention window of its layers; 0: all."""
    layers: tuple[int, ...]


def one_group(layers: int) -> tuple[LayerGroup, ...]:
    """Return the group of all layers, which keeps the whole context."""
    return (LayerGroup(0, tuple(range(layers))),)


def layer_groups(config: ModelConfig) -> tuple[LayerGroup, ...]:
    """Return the groups of a model's layers, full attention first; each has at most ``places`` layers.

    Layers with windows as wide as the context, or too few of them to save memory, get no groups of their own. A group
    with windows of different sizes keeps the widest.
    """
    near = [layer for layer in range(config.layers) if 0 < config.window(layer) < config.max_positions]
    wide = [layer for layer in range(config.layers) if layer not in set(near)]
    if not near:
        return one_group(config.layers)
    window = max(config.window(layer) for layer in near)
    if not wide:
        return (LayerGroup(window, tuple(near)),)
    size = _size(len(wide), len(near))
    if -(-len(wide) // size) * size >= config.layers:
        return one_group(config.layers)
    return (*_cut(0, wide, size), *_cut(window, near, size))


def places(groups: tuple[LayerGroup, ...]) -> int:
    """Return how many layers fit in a block."""
    return max(len(group.layers) for group in groups)


def _size(wide: int, near: int) -> int:
    """Return the layers per group that give as few groups as possible, with few places without a layer."""

    def count(size: int) -> int:
        return -(-wide // size) + -(-near // size)

    allowed = [size for size in range(1, wide + near + 1) if count(size) * size <= (wide + near) * (1 + MOST_PADDING)]
    return min(allowed, key=lambda size: (count(size), size))  # 1 is always allowed


def _cut(window: int, layers: list[int], size: int) -> list[LayerGroup]:
    return [LayerGroup(window, tuple(layers[at : at + size])) for at in range(0, len(layers), size)]
