"""Keys that several families share: windows, kinds of layers, experts."""

from __future__ import annotations

from typing import Any

from infeng_core.api.formats import Fields, show

FULL = "full_attention"

COUNTS = ("num_experts", "num_local_experts")
"""The number of experts of a layer; the key differs between families and versions of transformers."""


def windows(fields: Fields, layers: int, *, pattern: int = 1) -> tuple[int, ...]:
    """Return the attention window of each layer, 0 for full attention; () if no layer has a window.

    ``layer_types`` names the layers with a window. Without it, every ``pattern``-th layer has full attention; with
    pattern 1, all have.
    """
    kinds = layer_types(fields, layers)
    if kinds is not None and set(kinds) == {FULL}:
        fields.has("sliding_window")  # its value is ignored here
        return ()
    if not fields.has("sliding_window"):
        if kinds is not None:
            fields.fail("sliding_window", "is not set, and layer_types has layers with a window")
        return ()
    size = fields.integer("sliding_window", 1, 1 << 28)
    if kinds is None:
        kinds = tuple(FULL if pattern > 1 and (i + 1) % pattern == 0 else "sliding_attention" for i in range(layers))
    found = tuple(0 if kind == FULL else size for kind in kinds)
    return found if any(found) else ()


def switched_windows(fields: Fields, layers: int) -> tuple[int, ...]:
    """Return ``windows`` where ``use_sliding_window`` is set, else (); raises where ``layer_types`` has some then."""
    if fields.flag("use_sliding_window", False):
        return windows(fields, layers)
    fields.has("sliding_window")  # its value is ignored here: transformers 5 writes null or 0
    if any(kind != FULL for kind in layer_types(fields, layers) or ()):
        fields.fail("layer_types", "has sliding windows, and use_sliding_window is not set", "correct the file")
    return ()


def experts(fields: Fields, *, inner: str, count: int, chosen: int) -> dict[str, Any]:
    """Return the number of experts of a layer, their width (key ``inner``), and the number that a row goes to.

    count, chosen: the numbers if the file does not say.
    """
    said = [key for key in COUNTS if fields.has(key)]
    found = fields.integer(said[0] if said else COUNTS[0], 1, 4096, count)
    if len(said) == 2 and fields.integer(said[1], 1, 4096) != found:
        fields.fail(said[1], f"is {show(fields.data[said[1]])}, and {said[0]} is {found}: they mean the same")
    return {
        "experts": found,
        "experts_per_token": fields.integer("num_experts_per_tok", 1, min(found, 64), chosen),
        "expert_intermediate": fields.integer(inner, 1, 1 << 20),
    }


def layer_types(fields: Fields, layers: int) -> tuple[str, ...] | None:
    """Return the kind of attention of each layer; None if the file does not say."""
    if not fields.has("layer_types"):
        return None
    kinds = fields.data["layer_types"]
    if not isinstance(kinds, list) or len(kinds) != layers:
        fields.fail("layer_types", f"is {show(kinds)}, it must be a list of {layers} names")
    for kind in kinds:
        if kind not in (FULL, "sliding_attention"):
            fields.fail("layer_types", f"has {show(kind)}, which this version does not run", "use another model")
    return tuple(kinds)
