"""The names that a server is called by. Without keys, a page could call it by a name of its own (DNS rebinding)."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable
from ipaddress import ip_address

from infeng_core.api import UsageError, printable
from infeng_serve.protocol.errors import ApiError

ANY = "*"

_HOST = re.compile(r"(?:\[(?P<bracketed>[^\[\]]+)\]|(?P<name>[^:\[\]/@\s]+))(?::[0-9]*)?")


class Hosts:
    """Which values of a header ``Host`` are answered.

    A browser lets a page read whatever is at the page's own name. Who owns a name can have it mean 127.0.0.1 once his
    page is open, and then reads this server through his visitor's browser; all that gives him away is the name. An
    address in ``Host`` cannot be such a name, nor can localhost.
    """

    def __init__(self, allowed: Iterable[str] = (), *, is_checked: bool = True) -> None:
        """Answer to ``allowed`` beside addresses and localhost; raises UsageError. is_checked: False answers to all."""
        names = {name: _name(name) for name in allowed}
        for given, name in names.items():
            if not name:
                raise UsageError("allowed_hosts", f"{given!r} is no name of a host", "give names such as llm.example")
        self._allowed = frozenset(names.values())
        self._is_checked = is_checked and ANY not in self._allowed

    def check(self, host: bytes | None) -> None:
        """Raise ApiError 403 where a call names a host that this is not; one that names none comes from no browser."""
        if not self._is_checked or host is None:
            return
        name = _name(host.decode("latin-1"))
        if name in self._allowed or _is_local(name):
            return
        why = (
            f"This server asks for no key, so it answers to addresses and localhost alone, not to "
            f"{printable(name or host.decode('latin-1'), 200)!r}; start it with --allowed-hosts NAME, or with keys."
        )
        raise ApiError(403, why, type="permission_error", code="host_not_allowed")


def is_loopback(listener: socket.socket) -> bool:
    """Return whether a socket listens for callers of this machine alone."""
    return ip_address(str(listener.getsockname()[0]).partition("%")[0]).is_loopback


def _name(host: str) -> str:
    """Return the name or address of a ``Host``, without port; "" where it is none."""
    found = _HOST.fullmatch(host.strip())
    return "" if found is None else (found["bracketed"] or found["name"]).lower().rstrip(".")


def _is_local(name: str) -> bool:
    """Return whether nobody but this machine can say what a name means."""
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
