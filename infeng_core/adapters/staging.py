"""Which adapters are brought in for the requests that wait, and which stay for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from infeng_core.adapters.lease import Lease
from infeng_core.adapters.loading import Loading
from infeng_core.adapters.records import Entry, Resident
from infeng_core.adapters.shelf import Shelf
from infeng_core.errors import AdapterError, InfengError, ResourceError


def stage(shelf: Shelf, loading: Loading, leases: Sequence[Lease], fail: Callable[[Lease, InfengError], None]) -> int:
    """Begin to load what the requests of ``leases`` need, the first before the others. Called under the lock.

    Requests that run keep their adapters and pinned ones stay. In the rest of the memory each request in turn gets
    room for its own, up to the first for which there is none: it waits for somebody else's end, and gets that room
    before any other. What nobody in that row wants leaves for it, the longest unused first. A request whose adapters
    can never fit gets a ResourceError.

    Returns how many of the first of ``leases`` wait for no room that requests which run will give back: all of them
    where the first without room waits, as well or only, for loads of those before it.
    """
    now, later = _Room(shelf, shelf.held()), _Room(shelf, shelf.pinned())
    kept: set[Entry] = set()
    wanted: list[Entry] = []
    served = len(leases)
    for place, lease in enumerate(leases):
        if lease.error is not None:
            continue
        error: InfengError | None = _lost(shelf, lease)
        if error is None:
            _attach_known(shelf, lease)
            residents, missing = _needs(shelf, lease)
            missing = [entry for entry in missing if entry not in shelf.coming and entry not in kept]
            if now.take(residents, missing):
                later.take(residents, missing)
                kept.update(lease.entries)
                wanted += missing
                continue
            error = _never(shelf, lease)
        if error is not None:
            fail(lease, error)
            continue
        if later.take(residents, missing):
            served = place
        break
    loading.kept = kept
    for entry in wanted:
        if not shelf.make_room(1, entry.nbytes or 0, loading.is_wanted):
            break
        loading.begin(entry)
    return served


class _Room:
    """What is left of the memory where some residents stay."""

    def __init__(self, shelf: Shelf, stays: set[Resident]) -> None:
        self.stays = stays
        self.places, self.spare = shelf.room(stays)

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


def _needs(shelf: Shelf, lease: Lease) -> tuple[set[Resident], list[Entry]]:
    """Return what a request needs of what is in memory, and what it needs that is not."""
    pairs = list(zip(lease.entries, lease.contents or [None] * len(lease.entries), strict=True))
    found = [(entry, shelf.residents.get(id_) if id_ else entry.resident) for entry, id_ in pairs]
    residents = {resident for _, resident in found if resident is not None}
    return residents, [entry for entry, resident in found if resident is None]


def _lost(shelf: Shelf, lease: Lease) -> AdapterError | None:
    """Return the error of a request that is to go on with contents that are nowhere any more; else None."""
    for entry, id_ in zip(lease.entries, lease.contents, strict=False):  # none where it has not run
        if id_ not in shelf.residents and entry.id not in (None, id_):
            why = "it was reloaded while the request was preempted, and its old contents have left the memory"
            return AdapterError(f"adapter {entry.name}", why, "send the request again")
    return None


def _attach_known(shelf: Shelf, lease: Lease) -> None:
    """Give names whose contents are in memory under another name those contents."""
    for entry in lease.entries:
        if entry.resident is None and entry.id in shelf.residents:
            shelf.attach(entry, shelf.residents[entry.id])
            shelf.ring()


def _never(shelf: Shelf, lease: Lease) -> ResourceError | None:
    """Return the error of a request whose adapters do not fit beside the pinned ones, whoever ends; else None."""
    pinned = shelf.pinned()
    needed = [entry for entry in lease.entries if entry.resident is None or entry.resident not in pinned]
    nbytes = sum(entry.nbytes or 0 for entry in needed)
    if len(needed) > shelf.most - len(pinned):
        why = f"adapters.max_resident is {shelf.most}, of which {len(pinned)} are pinned"
        remedy = "raise it, or pin fewer"
    elif shelf.budget is not None and nbytes > shelf.budget - sum(resident.nbytes for resident in pinned):
        why = f"{nbytes} bytes do not fit: adapters.memory is {shelf.budget}, {len(pinned)} pinned adapters included"
        remedy = "raise it, or pin fewer"
    else:
        return None
    return ResourceError("adapters " + ", ".join(entry.name for entry in lease.entries), why, remedy)
