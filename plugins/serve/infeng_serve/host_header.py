"""Check of the header ``Host``, which protects a server without keys from DNS rebinding."""

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
    """The accepted values of the header ``Host``.

    A browser lets a page read every resource of the page's own origin. An attacker can resolve his domain to 127.0.0.1
    once his page is open, and so read this server through the visitor's browser (DNS rebinding); such calls carry his
    domain in ``Host``. IP addresses and localhost in ``Host`` are therefore safe, other names only if listed.
    """

    def __init__(self, allowed: Iterable[str] = (), *, is_checked: bool = True) -> None:
        """Accept ``allowed`` names, IP addresses and localhost; raises UsageError. is_checked: False accepts all."""
        names = {name: _name(name) for name in allowed}
        for given, name in names.items():
            if not name:
                raise UsageError("allowed_hosts", f"{given!r} is no name of a host", "give names such as llm.example")
        self._allowed = frozenset(names.values())
        self._is_checked = is_checked and ANY not in self._allowed

    def check(self, host: bytes | None) -> None:
        """Raise ApiError 403 for a host name that is not accepted; None passes, since browsers always send a host."""
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
    """Return whether a socket listens on a loopback address."""
    return ip_address(str(listener.getsockname()[0]).partition("%")[0]).is_loopback


def _name(host: str) -> str:
    """Return the name or address of a ``Host`` without port; "" if it is malformed."""
    found = _HOST.fullmatch(host.strip())
    return "" if found is None else (found["bracketed"] or found["name"]).lower().rstrip(".")


def _is_local(name: str) -> bool:
    """Return whether a name is resolved on this machine alone: an IP address or localhost."""
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
