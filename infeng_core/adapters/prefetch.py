"""The adapters to load for waiting requests, and those to keep for them."""

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
    """Begin to load the adapters of ``references``, in their order. Called under the lock.

    Adapters of running requests and pinned ones stay. In the remaining memory each request in turn gets room for its
    adapters, up to the first without room: it waits until another request ends, and gets that room before any other.
    Adapters that none of these requests uses are evicted, least recently used first. A request whose adapters can
    never fit gets a ResourceError.

    Returns how many of the first ``references`` do not wait for memory of running requests: all of them if the first
    request without room waits (also or only) for loads of earlier ones.
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
    """The free memory if some residents stay."""

    def __init__(self, cache: AdapterCache, stays: set[Resident]) -> None:
        self.stays = stays
        self.places, self.spare = cache.room(stays)

    def take(self, residents: set[Resident], missing: list[Entry]) -> bool:
        """Keep further residents and reserve room for entries, if possible; return whether it was."""
        more = residents - self.stays
        places = self.places - len(more) - len(missing)
        spare = self.spare - sum(r.nbytes for r in more) - sum(entry.nbytes or 0 for entry in missing)
        if places < 0 or spare < 0:
            return False
        self.places, self.spare = places, spare
        self.stays |= more
        return True


def _needs(cache: AdapterCache, reference: AdapterReference) -> tuple[set[Resident], list[Entry]]:
    """Return the residents that a request needs, and the entries that it needs loaded."""
    pairs = list(zip(reference.entries, reference.contents or [None] * len(reference.entries), strict=True))
    found = [(entry, cache.residents.get(id_) if id_ else entry.resident) for entry, id_ in pairs]
    residents = {resident for _, resident in found if resident is not None}
    return residents, [entry for entry, resident in found if resident is None]


def _lost(cache: AdapterCache, reference: AdapterReference) -> AdapterError | None:
    """Return the error of a preempted request whose contents no longer exist anywhere; else None."""
    for entry, id_ in zip(reference.entries, reference.contents, strict=False):  # empty before its first run
        if id_ not in cache.residents and entry.id not in (None, id_):
            why = "it was reloaded while the request was preempted, and its old contents have left the memory"
            return AdapterError(f"adapter {entry.name}", why, "send the request again")
    return None


def _attach_known(cache: AdapterCache, reference: AdapterReference) -> None:
    """Bind names to contents that are in memory under another name."""
    for entry in reference.entries:
        known = cache.residents.get(entry.id) if entry.resident is None and entry.id is not None else None
        if known is not None:
            cache.attach(entry, known)
            cache.notify()


def _never(cache: AdapterCache, reference: AdapterReference) -> ResourceError | None:
    """Return the error of a request whose adapters never fit beside the pinned ones; else None."""
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
