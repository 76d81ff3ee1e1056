"""API keys: the tenant of each key and the adapters that it may use."""

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
"""Most bytes of a file of keys."""

CHECK_SECONDS = 0.5
"""Least seconds between two checks of the file for changes."""

_COMMENT = re.compile(r"(?:^|\s)#")
_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Caller:
    """The tenant and permissions of a key."""

    tenant: str
    """Named in the file of keys, or derived from the key; "" on a server without keys."""
    adapters: frozenset[str] | None = None
    """The operator's adapters that the key may use; None: all of them."""
    sees_all: bool = False
    """Whether the key may use adapters that other tenants have loaded."""
    is_admin: bool = False
    """Whether the key may load adapters from any path, and unload those of all tenants."""
    may_watch: bool = True
    """Whether the key may read the metrics, which name tenants and their adapters."""


NOBODY = Caller("")
"""The caller of every call on a server without keys."""


class Keys:
    """The current keys. Only digests are kept, and each look-up compares all of them, in constant time."""

    def __init__(
        self, keys: Iterable[str] = (), *, admin_keys: Iterable[str] = (), file: str | Path | None = None
    ) -> None:
        """Accept single keys and a file of keys, which is reread when it changes; raises UsageError."""
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
        """Whether a call needs a key. With an empty file of keys every call is refused."""
        return self._file is not None or bool(self._fixed)

    @property
    def are_shared(self) -> bool:
        """Whether there are several tenants, or a file of keys that may gain some."""
        return self._file is not None or len({caller.tenant for caller in self.callers}) > 1

    def caller(self, authorization: bytes | None) -> Caller | None:
        """Return the caller for a header ``Authorization: Bearer KEY``; None for an unknown key."""
        if not self.are_asked_for:
            return NOBODY
        self._refresh()
        scheme, _, key = (authorization or b"").strip().partition(b" ")
        given = hashlib.sha256(key.strip()).digest()
        found = None
        for known, caller in self._entries:  # all of them, so that timing reveals nothing
            if hmac.compare_digest(given, known):
                found = caller
        return found if scheme.lower() == b"bearer" else None

    @property
    def callers(self) -> tuple[Caller, ...]:
        """The callers of all keys, each once; NOBODY alone on a server without keys."""
        return tuple(dict.fromkeys(caller for _, caller in self._entries)) if self.are_asked_for else (NOBODY,)

    def _refresh(self) -> None:
        """Reread the file if it has changed; while it is missing or wrong, the old keys stay valid."""
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
                _log.warning("the file of keys is wrong, the old keys stay valid", error=str(error))
            self._seen = None
            return
        self._entries, self._seen = [*self._fixed, *entries], signature
        _log.info("keys read again", keys=len(self._entries))


def digest(key: str) -> bytes:
    """Return the digest of a key, which is all that is kept of it."""
    return hashlib.sha256(key.encode()).digest()


def unnamed(key: str) -> str:
    """Return the tenant of a key without a tenant name: stable across restarts, and not invertible."""
    return "key-" + hashlib.blake2b(key.encode(), digest_size=6, person=b"infeng-tenant").hexdigest()


def read_keys(path: Path) -> list[tuple[bytes, Caller]]:
    """Read lines ``KEY [TENANT [ADAPTERS [admin]]] [# comment]``; raises UsageError with the line number, not the key.

    TENANT: ``-`` for none. ADAPTERS: comma-separated names, ``-`` for none of the operator's, ``*`` for those of all
    tenants too.
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
            raise UsageError(
                place, "it is not a line of keys", "write KEY TENANT ADAPTERS admin, the last three optional"
            )
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
