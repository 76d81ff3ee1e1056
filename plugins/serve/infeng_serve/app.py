"""The ASGI application: authenticates a call, dispatches it to its route, and answers errors."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from infeng_core.api import get_logger
from infeng_serve.failures import GoneError, failure, reason_of, unauthenticated
from infeng_serve.host_header import Hosts
from infeng_serve.http import Call, Receive, Scope, Send
from infeng_serve.observers import Record
from infeng_serve.protocol.answer import Read
from infeng_serve.protocol.errors import ApiError, ErrorForm, openai_form
from infeng_serve.protocol.operation import Operation
from infeng_serve.service import Service

_log = get_logger(__name__)

Handler = Callable[[Service, Call], Awaitable[None]]

_HEADER_NAMES = re.compile(rb"[A-Za-z0-9_\-, ]{1,2048}")
_EXPOSED = (b"access-control-expose-headers", b"x-request-id, x-infeng-ignored, retry-after, retry-after-ms")


@dataclass(frozen=True, slots=True)
class Route:
    """The handlers of one path."""

    handlers: Mapping[str, Handler]
    """Handlers by method; GET also answers HEAD."""
    is_open: bool = False
    """Whether the path needs no API key."""
    error_form: ErrorForm = openai_form
    """Returns the body of an error's response; the default is OpenAI's form."""
    read: Read | None = None
    """Reads the calls of a generating route whose streams can be resumed."""
    operations: Sequence[Operation] = ()
    """The entries of a plugin's route in the OpenAPI document."""

    @property
    def allowed(self) -> str:
        """The value of the header ``Allow``."""
        names = {*self.handlers, "OPTIONS", *(["HEAD"] if "GET" in self.handlers else [])}
        return ", ".join(sorted(names))


class App:
    """The ASGI application."""

    def __init__(self, service: Service, routes: Mapping[str, Route], hosts: Hosts) -> None:
        """Dispatch by ``routes``: handlers by path; a path that ends with / matches every path that begins with it."""
        self._service = service
        self._hosts = hosts
        self._routes = dict(routes)
        self._prefixes = tuple(path for path in routes if path.endswith("/") and path != "/")
        service.reads = {path: route.read for path, route in routes.items() if route.read is not None}
        service.operations = tuple(one for route in routes.values() for one in route.operations)
        self._origins = frozenset(origin.encode("latin-1") for origin in service.settings.cors)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP call; the ASGI entry point."""
        if scope["type"] != "http":
            return
        call = Call(scope, receive, send)
        try:
            await self._answer(call)
        except GoneError:
            pass
        except Exception as error:
            if call.is_started:
                raise  # the head is sent already: uvicorn closes the connection
            await call.fail(failure(error, call.id))
        finally:
            call.close()

    async def _answer(self, call: Call) -> None:
        self._check_host(call)
        route = self._route(call.path)
        if route is not None:
            call.error_form = route.error_form
        self._mark_origin(call)
        if call.method == "OPTIONS" and route is not None:
            await self._options(call, route)
            return
        if route is None or not route.is_open:
            self._authenticate(call)
        if route is None:
            raise ApiError(404, f"There is nothing at {call.path[:200]!r}.", code="not_found")
        handler = route.handlers.get("GET" if call.method == "HEAD" else call.method)
        if handler is None:
            why = f"{call.path[:200]} does not take {call.method}."
            raise ApiError(405, why, code="method_not_allowed", headers={"allow": route.allowed})
        await handler(self._service, call)

    def _route(self, path: str) -> Route | None:
        found = self._routes.get(path)
        if found is None:
            prefix = next((prefix for prefix in self._prefixes if path.startswith(prefix) and path != prefix), None)
            found = None if prefix is None else self._routes[prefix]
        return found

    def _authenticate(self, call: Call) -> None:
        """Set the caller from the API key, in ``Authorization`` or else in ``X-Api-Key``; raises ApiError 401."""
        given = call.headers.get(b"authorization")
        if given is None and (key := call.headers.get(b"x-api-key")) is not None:
            given = b"Bearer " + key
        caller = self._service.keys.caller(given)
        if caller is not None:
            call.caller = caller
            return
        self._turn_away(call, unauthenticated(given is not None))

    def _turn_away(self, call: Call, error: ApiError) -> NoReturn:
        """Report an unauthenticated call to the observers and raise ``error``."""
        for observer in self._service.observers:
            record = Record(call.id, call.path, "", "", client=call.client, wall=call.wall, arrived=call.arrived)
            record.status = error.status
            observer.rejected(record, reason_of(error))
        raise error

    # ---------------------------------------------------------------------------------- cross-origin protection ---

    def _check_host(self, call: Call) -> None:
        """Check the header ``Host``; raises ApiError 403 for a name that is not this server's."""
        try:
            self._hosts.check(call.headers.get(b"host"))
        except ApiError as error:
            self._turn_away(call, error)

    def _mark_origin(self, call: Call) -> None:
        """Add the CORS headers that let a page of an allowed origin read the answer."""
        if not self._origins:
            return
        origin = call.headers.get(b"origin")
        if b"*" in self._origins:
            call.extra += [(b"access-control-allow-origin", b"*"), _EXPOSED]
            return
        call.extra.append((b"vary", b"origin"))
        if origin in self._origins:
            call.extra += [(b"access-control-allow-origin", origin), _EXPOSED]

    async def _options(self, call: Call, route: Route) -> None:
        headers: list[tuple[bytes, bytes]] = [(b"allow", route.allowed.encode("ascii"))]
        wanted: Any = call.headers.get(b"access-control-request-headers", b"")
        if any(name == b"access-control-allow-origin" for name, _ in call.extra):
            headers += [(b"access-control-allow-methods", route.allowed.encode("ascii"))]
            headers += [(b"access-control-max-age", b"600")]
            if _HEADER_NAMES.fullmatch(wanted):
                headers.append((b"access-control-allow-headers", wanted))
        await call.respond(204, headers=headers)
