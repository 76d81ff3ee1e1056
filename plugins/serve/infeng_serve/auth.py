"""Keys: who calls, as which tenant, and which adapters that one sees."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from infeng_core.api import InfengError, UsageError, get_logger, read_text

LARGEST = 16 << 20
"""Bytes of a file of keys."""

CHECK_SECONDS = 0.5
"""How often the file is looked at, at most."""

_COMMENT = re.compile(r"(?:^|\s)#")
_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Caller:
    """Who a key belongs to."""

    tenant: str
    """Named by the file of keys, or made from the key; "" where the server asks for none."""
    adapters: frozenset[str] | None = None
    """Which of the operator's adapters it sees; None: all of them."""
    sees_all: bool = False
    """Whether it sees what other tenants have loaded."""
    is_admin: bool = False
    """Whether it may load adapters from anywhere, and unload everybody's."""
    may_watch: bool = True
    """Whether it may see the metrics, which name tenants and their adapters."""


NOBODY = Caller("")
"""Everybody, where the server asks for no key."""


class Keys:
    """The keys that are known now. Of each only a digest is kept, and every one is compared at each look-up."""

    def __init__(
        self, keys: Iterable[str] = (), *, admin_keys: Iterable[str] = (), file: str | Path | None = None
    ) -> None:
        """Take single keys and a file of them, which is read again when it changes; raises UsageError."""
        self._fixed = [(digest(key), Caller(unnamed(key))) for key in map(_checked, keys)]
        self._fixed += [(digest(key), Caller(unnamed(key), None, True, True)) for key in map(_checked, admin_keys)]
        self._file = None if file is None else Path(file)
        self._seen: tuple[int, int, int] | None = None
        self._looked = 0.0
        self._entries = self._fixed
        if self._file is not None:
            self._seen = _signature(self._file)
            self._entries = [*self._fixed, *read_keys(self._file)]

    @property
    def are_asked_for(self) -> bool:
        """Whether a call needs a key. A file that has none lets nobody in."""
        return self._file is not None or bool(self._fixed)

    @property
    def are_shared(self) -> bool:
        """Whether there is more than one tenant, or a file to which one may be added."""
        return self._file is not None or len({caller.tenant for caller in self.callers}) > 1

    def caller(self, authorization: bytes | None) -> Caller | None:
        """Return whose key a header ``Authorization: Bearer KEY`` has; None where it is nobody's."""
        if not self.are_asked_for:
            return NOBODY
        self._refresh()
        scheme, _, key = (authorization or b"").strip().partition(b" ")
        given = hashlib.sha256(key.strip()).digest()
        found = None
        for known, caller in self._entries:  # all of them: how long it takes tells nothing
            if hmac.compare_digest(given, known):
                found = caller
        return found if scheme.lower() == b"bearer" else None

    @property
    def callers(self) -> tuple[Caller, ...]:
        """Who has a key, each once; NOBODY where none is asked for."""
        return tuple(dict.fromkeys(caller for _, caller in self._entries)) if self.are_asked_for else (NOBODY,)

    def _refresh(self) -> None:
        """Read the file again if it has changed; while it is missing or wrong, what was read before holds."""
        now = time.monotonic()
        if self._file is None or now < self._looked + CHECK_SECONDS:
            return
        self._looked = now
        try:
            signature = _signature(self._file)
            if signature == self._seen:
                return
            entries = read_keys(self._file)
        except InfengError as error:
            if self._seen is not None:
                _log.warning("the keys stay as they were", error=str(error))
            self._seen = None
            return
        self._entries, self._seen = [*self._fixed, *entries], signature
        _log.info("keys read again", keys=len(self._entries))


def digest(key: str) -> bytes:
    """Return what is kept of a key."""
    return hashlib.sha256(key.encode()).digest()


def unnamed(key: str) -> str:
    """Return the tenant of a key that names none: the same after every start, and no way back to the key."""
    return "key-" + hashlib.blake2b(key.encode(), digest_size=6, person=b"infeng-tenant").hexdigest()


def read_keys(path: Path) -> list[tuple[bytes, Caller]]:
    """Read lines ``KEY [TENANT [ADAPTERS [admin]]] [# comment]``; raises UsageError with the line, without the key.

    TENANT: ``-`` stands for none. ADAPTERS: names with commas, ``-`` for none of the operator's, ``*`` for everybody's.
    """
    return list(_parsed(path, read_text(path, LARGEST, UsageError, "give a file of keys that can be read")))


def _parsed(path: Path, text: str) -> Iterator[tuple[bytes, Caller]]:
    known: set[bytes] = set()
    for number, line in enumerate(text.splitlines(), 1):
        words = _COMMENT.split(line)[0].split()
        if not words:
            continue
        place = f"{path}:{number}"
        if len(words) > 4 or words[3:] not in ([], ["admin"]):
            raise UsageError(place, "it is no line of keys", "write KEY TENANT ADAPTERS admin, the last three optional")
        key = _checked(words[0], place)
        if digest(key) in known:
            raise UsageError(place, "the key is listed twice", "give it to one tenant")
        known.add(digest(key))
        yield digest(key), _caller(key, *words[1:])


def _caller(key: str, tenant: str = "-", adapters: str | None = None, admin: str = "") -> Caller:
    names = None if adapters in (None, "*") else frozenset(str(adapters).split(",")) - {"", "-"}
    sees_all, is_admin = adapters == "*", bool(admin)
    tenant = unnamed(key) if tenant == "-" else tenant
    return Caller(tenant, names, sees_all, is_admin, sees_all or is_admin)


def _checked(key: str, place: str = "an API key") -> str:
    if not key.isascii() or not key.isprintable() or not key or " " in key:
        raise UsageError(place, "it has characters that a header cannot have", "use letters, digits and - . _ ~ + /")
    return key


def _signature(path: Path) -> tuple[int, int, int]:
    try:
        found = os.stat(path)  # noqa: PTH116  # a third of the time of Path.stat, at every call
    except OSError as error:
        raise UsageError(f"{path}", error.strerror or str(error), "give a file of keys that can be read") from error
    return found.st_mtime_ns, found.st_size, found.st_ino
