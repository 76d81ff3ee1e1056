"""Repeated calls: by the client's Idempotency-Key, or for the rest of a broken stream."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

from infeng_core.api import AdapterError, Engine, Request
from infeng_serve.adapters import told_name
from infeng_serve.http import Call
from infeng_serve.journal import Entry, Journal
from infeng_serve.protocol.errors import ApiError

MOST_CHARACTERS = 255
"""Most characters of an Idempotency-Key."""


class Idempotency:
    """Finds the call that another one repeats, and checks that its answer would still be the same."""

    def __init__(self, journal: Journal) -> None:
        """Look up calls in ``journal``."""
        self.engine: Engine | None = None
        """The model, once it is loaded."""
        self._journal = journal
        self._running: set[tuple[str, str]] = set()

    @contextlib.contextmanager
    def one_at_a_time(self, call: Call, key: str) -> Iterator[None]:
        """Hold a key's lock while its call is answered; raises ApiError 409 if it is held, 400 for an invalid key."""
        if not key:
            yield
            return
        if len(key) > MOST_CHARACTERS:
            raise ApiError(400, f"Idempotency-Key has more than {MOST_CHARACTERS} characters.", param="Idempotency-Key")
        place = (call.caller.tenant, key)
        if place in self._running:
            headers = {"retry-after": "1"}
            why = "A call with this Idempotency-Key is being answered."
            raise ApiError(409, why, code="idempotency_key_in_use", param="Idempotency-Key", headers=headers)
        self._running.add(place)
        try:
            yield
        finally:
            self._running.discard(place)

    def entry(self, call: Call, key: str, body: bytes) -> Entry | None:
        """Return the earlier call with this key; raises ApiError 422 if that call had another path or body."""
        entry = self._journal.repeated(call.caller.tenant, key) if key else None
        if entry is None:
            return None
        if (entry.path, entry.body) != (call.path, body):
            why = "This Idempotency-Key came with another call before; give each call its own."
            raise ApiError(422, why, code="idempotency_key_reused", param="Idempotency-Key")
        self.check_same(entry)
        return entry

    def check_same(self, entry: Entry) -> None:
        """Raise ApiError 409 if the answer would have other bytes than the first one.

        Adapters that are not in memory are not compared here, but once they are read for the answer.
        """
        changes = self._journal.changes(entry)
        adapters = self._changed_adapters(entry)
        if changes or adapters:
            code = "model_changed" if adapters or "model" in changes else "engine_changed"
            what = "; ".join([*changes.values(), *adapters])
            raise ApiError(409, f"The answer would not be the same: {what}. Make the call anew.", code=code)

    def _changed_adapters(self, entry: Entry) -> list[str]:
        now = {name: (source, id) for name, source, id in self._known(name for name, _, _ in entry.adapters)}
        changes = []
        for name, source, id in entry.adapters:
            told = told_name(name, entry.tenant)
            if name not in now:
                changes.append(f"the adapter {told} is not there")
            elif now[name][0] != source:
                changes.append(f"the adapter {told} is from elsewhere")
            elif id and now[name][1] and now[name][1] != id:
                changes.append(f"the adapter {told} has other contents")
        return changes

    def contents(self, requests: Iterable[Request]) -> tuple[tuple[str, str, str], ...]:
        """Return (name, source, content id or "") of each adapter that the requests name."""
        names: set[str] = set()
        for request in requests:
            adapter = request.adapter
            if isinstance(adapter, str):
                names.add(adapter)
            elif adapter is not None:
                names.update(name for name, _ in adapter)
        return tuple(self._known(sorted(names))) if names else ()

    def _known(self, names: Iterable[str]) -> Iterator[tuple[str, str, str]]:
        """Yield (name, source, content id or "") of those of ``names`` that the engine has."""
        assert self.engine is not None
        for name in names:
            with contextlib.suppress(AdapterError):
                info = self.engine.adapters[name]
                yield info.name, info.source, info.id or ""
