"""Which adapters may answer one request together."""

from __future__ import annotations

from collections.abc import Sequence

from infeng_core.adapters.records import Resident
from infeng_core.errors import RequestError
from infeng_core.formats.adapters.packed import MAX_MAGNITUDE


def check_combination(parts: Sequence[tuple[str, Resident, float]], max_stacked_rank: int) -> None:
    """Raise RequestError unless adapters (name, contents, weight) can be used on one row.

    A weight scales the product B A. DoRA also rescales what the base gives, biases shift it and saved modules replace
    it, none of which half a weight could do. max_stacked_rank: rank rows of all together that the backend has room for.
    """
    for name, resident, weight in parts:
        if resident.is_whole and weight != 1.0:
            kind = "saved modules" if resident.saves_modules else "DoRA magnitudes or biases"
            why = f"it has {kind}, so its weight can only be 1, not {weight:g}"
            raise RequestError(f"adapter {name}", why, "leave the weight out")
        if not abs(weight) * max(1.0, resident.reach) <= MAX_MAGNITUDE:
            why = f"its weight {weight:g} makes it add numbers whose squares float32 does not hold"
            raise RequestError(f"adapter {name}", why, "give a smaller one")
    saving = [name for name, resident, _ in parts if resident.saves_modules]
    if len(saving) > 1:
        why = "each replaces modules of the base, and only one can"
        raise RequestError(f"adapters {' and '.join(saving)}", why, "use one of them")
    stacked = sum(resident.stacked_rank for _, resident, _ in parts)
    if stacked > max_stacked_rank:
        names = ", ".join(name for name, _, _ in parts)
        why = f"their stacked ranks add up to {stacked}, and a row has room for {max_stacked_rank}"
        raise RequestError(f"adapters {names}", why, "combine fewer, or such of lower rank")
