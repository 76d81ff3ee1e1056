"""Which adapters are brought in for the requests that wait, and which stay for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from infeng_core.adapters.cache import AdapterCache
from infeng_core.adapters.loading import Loading
from infeng_core.adapters.records import Entry, Resident
from infeng_core.adapters.reference import AdapterReference
from infeng_core.errors import AdapterError, InfengError, ResourceError


def prefetch(
    cache: AdapterCache,
    loading: Loading,
    references: Sequence[AdapterReference],
    fail: Callable[[AdapterReference, InfengError], None],
) -> int:
    """Begin to load what the requests of ``references`` need, the first before the others. Called under the lock.

    Requests that run keep their adapters and pinned ones stay. In the rest of the memory each request in turn gets
    room for its own, up to the first for which there is none: it waits for somebody else's end, and gets that room
    before any other. What nobody in that row wants leaves for it, the longest unused first. A request whose adapters
    can never fit gets a ResourceError.

    Returns how many of the first of ``references`` wait for no room that requests which run will give back: all of them
    where the first without room waits, as well or only, for loads of those before it.
    """
    now, later = _Room(cache, cache.held()), _Room(cache, cache.pinned())
    kept: set[Entry] = set()
    wanted: list[Entry] = []
    served = len(references)
    for place, reference in enumerate(references):
        if reference.error is not None:
            continue
        error: InfengError | None = _lost(cache, reference)
        if error is None:
            _attach_known(cache, reference)
            residents, missing = _needs(cache, reference)
            missing = [entry for entry in missing if entry not in cache.coming and entry not in kept]
            if now.take(residents, missing):
                later.take(residents, missing)
                kept.update(reference.entries)
                wanted += missing
                continue
            error = _never(cache, reference)
        if error is not None:
            fail(reference, error)
            continue
        if later.take(residents, missing):
            served = place
        break
    loading.kept = kept
    for entry in wanted:
        if not cache.make_room(1, entry.nbytes or 0, loading.is_wanted):
            break
        loading.begin(entry)
    return served


class _Room:
    """What is left of the memory where some residents stay."""

    def __init__(self, cache: AdapterCache, stays: set[Resident]) -> None:
        self.stays = stays
        self.places, self.spare = cache.room(stays)

    def take(self, residents: set[Resident], missing: list[Entry]) -> bool:
        """Let residents stay as well and give entries room, if that is possible; return whether it is."""
        more = residents - self.stays
        places = self.places - len(more) - len(missing)
        spare = self.spare - sum(r.nbytes for r in more) - sum(entry.nbytes or 0 for entry in missing)
        if places < 0 or spare < 0:
            return False
        self.places, self.spare = places, spare
        self.stays |= more
        return True


def _needs(cache: AdapterCache, reference: AdapterReference) -> tuple[set[Resident], list[Entry]]:
    """Return what a request needs of what is in memory, and what it needs that is not."""
    pairs = list(zip(reference.entries, reference.contents or [None] * len(reference.entries), strict=True))
    found = [(entry, cache.residents.get(id_) if id_ else entry.resident) for entry, id_ in pairs]
    residents = {resident for _, resident in found if resident is not None}
    return residents, [entry for entry, resident in found if resident is None]


def _lost(cache: AdapterCache, reference: AdapterReference) -> AdapterError | None:
    """Return the error of a request that is to go on with contents that are nowhere any more; else None."""
    for entry, id_ in zip(reference.entries, reference.contents, strict=False):  # none where it has not run
        if id_ not in cache.residents and entry.id not in (None, id_):
            why = "it was reloaded while the request was preempted, and its old contents have left the memory"
            return AdapterError(f"adapter {entry.name}", why, "send the request again")
    return None


def _attach_known(cache: AdapterCache, reference: AdapterReference) -> None:
    """Give names whose contents are in memory under another name those contents."""
    for entry in reference.entries:
        if entry.resident is None and entry.id in cache.residents:
            cache.attach(entry, cache.residents[entry.id])
            cache.notify()


def _never(cache: AdapterCache, reference: AdapterReference) -> ResourceError | None:
    """Return the error of a request whose adapters do not fit beside the pinned ones, whoever ends; else None."""
    pinned = cache.pinned()
    needed = [entry for entry in reference.entries if entry.resident is None or entry.resident not in pinned]
    nbytes = sum(entry.nbytes or 0 for entry in needed)
    if len(needed) > cache.most - len(pinned):
        why = f"adapters.max_resident is {cache.most}, of which {len(pinned)} are pinned"
        remedy = "raise it, or pin fewer"
    elif cache.budget is not None and nbytes > cache.budget - sum(resident.nbytes for resident in pinned):
        why = f"{nbytes} bytes do not fit: adapters.memory is {cache.budget}, {len(pinned)} pinned adapters included"
        remedy = "raise it, or pin fewer"
    else:
        return None
    return ResourceError("adapters " + ", ".join(entry.name for entry in reference.entries), why, remedy)
