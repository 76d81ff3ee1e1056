"""The page at /: static files of this package, served without a key. The page's calls carry the key."""

from __future__ import annotations

import hashlib
from importlib.resources import files

from infeng_serve.app import Handler, Route
from infeng_serve.http import Call
from infeng_serve.service import Service
from infeng_serve.settings import Settings

MODULES = ("page", "adapters", "column", "conversations", "dom", "files", "markdown", "server", "settings")
"""Scripts of the page, each a module."""

FILES = {
    "/": ("index.html", b"text/html; charset=utf-8"),
    "/page.css": ("page.css", b"text/css; charset=utf-8"),
    **{f"/{name}.js": (f"{name}.js", b"text/javascript; charset=utf-8") for name in MODULES},
}
"""Paths to files of the folder ``page``, with their types."""

POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Content security policy: the page may load, run and call this server only."""


def routes(settings: Settings) -> dict[str, Route]:
    """Return the page's routes; empty if the page is switched off."""
    if not settings.page:
        return {}
    folder = files("infeng_serve") / "page"
    return {path: _file((folder / name).read_bytes(), kind) for path, (name, kind) in FILES.items()}


def _file(data: bytes, kind: bytes) -> Route:
    """Return the route of a file, which browsers cache and revalidate each time."""
    tag = b'"%s"' % hashlib.sha256(data).hexdigest()[:32].encode("ascii")
    headers = [
        (b"etag", tag),
        (b"cache-control", b"no-cache"),
        (b"content-security-policy", POLICY),
        (b"x-content-type-options", b"nosniff"),
        (b"referrer-policy", b"no-referrer"),
        (b"cross-origin-opener-policy", b"same-origin"),
    ]

    async def answered(service: Service, call: Call) -> None:
        if _is_known(call.headers.get(b"if-none-match", b""), tag):
            await call.respond(304, headers=headers)
        else:
            await call.respond(200, data, kind=kind, headers=headers)

    handler: Handler = answered
    return Route({"GET": handler}, is_open=True)


def _is_known(given: bytes, tag: bytes) -> bool:
    """Return whether a header If-None-Match has the file's current tag."""
    return given.strip() == b"*" or tag in (one.strip().removeprefix(b"W/") for one in given.split(b","))
