"""The texts of all tenants, within bounds of memory.

An index belongs to a tenant, a salt and a set of adapters, and is found by nothing else: no text of one is ever
compared with another's, and what was learned from one is not used for another.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

from infeng_suffix.chances import Chances
from infeng_suffix.index import DEPTH, Index
from infeng_suffix.text import Text

if TYPE_CHECKING:
    from infeng_core.api.engines import DraftedRequest

TOKEN_BYTES = 400
"""Bytes of an indexed token: its two keys with their places, at the worst load of a dictionary."""

SLICE = 4096
"""Most tokens of one text that are indexed or dropped at a time."""

Key = tuple[str, tuple[tuple[str, float], ...]]
"""A salt and the adapters."""


class Shelf:
    """The index of one key, and what was learned from it."""

    def __init__(self, tenant: Tenant, key: Key) -> None:
        """Start without texts."""
        self.tenant, self.key = tenant, key
        self.index = Index()
        self.chances = Chances()
        self.running = 0
        """Requests that write to it."""


class Tenant:
    """The shelves of one tenant."""

    def __init__(self, name: str) -> None:
        """Start without texts."""
        self.name = name
        self.shelves: dict[Key, Shelf] = {}
        self.answers: OrderedDict[tuple[Key, int], Text] = OrderedDict()
        """The ended ones, the longest unused first."""
        self.tokens = 0
        """Tokens that are indexed."""


class Store:
    """The tenants, the longest unused first."""

    def __init__(self, memory: int, tenant_memory: int) -> None:
        """Keep at most so many bytes of all texts, and of one tenant's."""
        self._most = memory // TOKEN_BYTES
        self._most_of_one = min(tenant_memory // TOKEN_BYTES, self._most)
        self._tenants: OrderedDict[str, Tenant] = OrderedDict()
        self._tokens = 0
        self._numbers = 0
        self._prompts: deque[tuple[Shelf, Text, int]] = deque()  # of ended requests: the position where each ends

    @property
    def nbytes(self) -> int:
        """Bytes of all texts."""
        return self._tokens * TOKEN_BYTES

    def bytes_of(self, tenant: str) -> int:
        """Return the bytes of a tenant's texts."""
        found = self._tenants.get(tenant)
        return 0 if found is None else found.tokens * TOKEN_BYTES

    @property
    def tenants(self) -> tuple[str, ...]:
        """The tenants with texts, the longest unused first."""
        return tuple(self._tenants)

    def open(self, request: DraftedRequest) -> Shelf:
        """Return the shelf of a request, which writes to it until ``close``."""
        tenant = self._tenants.get(request.tenant)
        if tenant is None:
            tenant = self._tenants[request.tenant] = Tenant(request.tenant)
        self._tenants.move_to_end(request.tenant)
        key = request.cache_salt, request.adapters
        shelf = tenant.shelves.get(key)
        if shelf is None:
            shelf = tenant.shelves[key] = Shelf(tenant, key)
        shelf.running += 1
        return shelf

    def begin(self, tokens: Iterable[int]) -> Text:
        """Return a new text."""
        self._numbers += 1
        return Text(self._numbers, tokens)

    def extend(self, shelf: Shelf, text: Text) -> None:
        """Index the tokens that a text has gained, at most ``SLICE``; the last waits for the one after it."""
        self._drop_prompts()
        count = min(text.end - 1 - text.indexed, SLICE)
        if count <= 0 or text.is_full:
            return
        if not self._make_room(shelf.tenant, count):
            text.is_full = True
            return
        shelf.index.add(text, count)
        self._count(shelf.tenant, count)

    def touch(self, shelf: Shelf, text: Text) -> None:
        """Note that an answer was of use."""
        if (shelf.key, text.number) in shelf.tenant.answers:
            shelf.tenant.answers.move_to_end((shelf.key, text.number))

    def close(self, shelf: Shelf, text: Text, begin: int) -> None:
        """Take the text of a request that has ended, whose answer begins at position ``begin``.

        The answer is kept with the ``DEPTH`` tokens before it.
        """
        shelf.running -= 1
        if text.held:
            shelf.tenant.answers[shelf.key, text.number] = text
            self._prompts.append((shelf, text, begin - DEPTH))
            self._drop_prompts()
        self._clean(shelf)

    def _drop_prompts(self) -> None:
        """Drop prompts of ended requests, ``SLICE`` tokens at most."""
        left = SLICE
        while self._prompts and left > 0:
            shelf, text, begin = self._prompts[0]
            count = min(begin - text.first, text.held, left)
            if count > 0:
                self._trim(shelf, text, count)
                left -= count
            if text.first >= begin or not text.held:
                self._prompts.popleft()

    def _make_room(self, tenant: Tenant, count: int) -> bool:
        """Drop old answers for ``count`` tokens of a tenant; return whether there is room."""
        if count > self._most_of_one:
            return False
        while tenant.tokens + count > self._most_of_one:
            if not self._shorten(tenant, tenant.tokens + count - self._most_of_one):
                return False
        while self._tokens + count > self._most:
            needed = self._tokens + count - self._most
            if not any(self._shorten(one, needed) for one in list(self._tenants.values())):
                return False
        return True

    def _shorten(self, tenant: Tenant, count: int) -> bool:
        """Drop up to ``count`` tokens of a tenant's longest unused answer; return whether there was one."""
        if not tenant.answers:
            return False
        name, text = next(iter(tenant.answers.items()))
        shelf = tenant.shelves.get(name[0])
        if shelf is None or text.held <= 0:  # after Ctrl-C between two lines
            del tenant.answers[name]
        else:
            self._trim(shelf, text, min(count, text.held))
        return True

    def _trim(self, shelf: Shelf, text: Text, count: int) -> None:
        shelf.index.trim(text, count)
        self._count(shelf.tenant, -count)
        if not text.held:
            shelf.tenant.answers.pop((shelf.key, text.number), None)
            self._clean(shelf)

    def _count(self, tenant: Tenant, tokens: int) -> None:
        tenant.tokens += tokens
        self._tokens += tokens

    def _clean(self, shelf: Shelf) -> None:
        """Forget a shelf without texts, and a tenant without shelves."""
        tenant = shelf.tenant
        if shelf.running or shelf.index.texts or tenant.shelves.get(shelf.key) is not shelf:
            return
        del tenant.shelves[shelf.key]
        if not tenant.shelves:
            self._count(tenant, -tenant.tokens)  # 0, but after Ctrl-C between two lines
            del self._tenants[tenant.name]
