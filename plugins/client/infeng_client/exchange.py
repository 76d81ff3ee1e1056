"""Performs the steps of a call with blocking I/O."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import httpx

from infeng_client.errors import ApiError
from infeng_client.sending import Came, Give, Read, Send, Wait
from infeng_client.streaming import SoFar
from infeng_client.transport import as_error, reply_of, request_of


class Exchange:
    """Performs the steps of one call, with one response at a time."""

    def __init__(self, http: httpx.Client, base: str, api_key: str | None) -> None:
        """Start without a response."""
        self._http = http
        self._base = base
        self._api_key = api_key
        self._response: httpx.Response | None = None
        self._body: Iterator[bytes] = iter(())
        self._cancelled = threading.Event()

    def perform(self, step: Send | Read | Wait | Give) -> Came:
        """Perform one step and return its result."""
        if isinstance(step, Wait):
            self._cancelled.wait(step.seconds)
            return None
        assert not isinstance(step, Give)
        try:
            return next(self._body, b"") if isinstance(step, Read) else self._send(step)
        except httpx.RequestError as error:
            return as_error(error, self._base)

    def _send(self, step: Send) -> Came:
        self.close()
        response = self._http.send(request_of(self._http, step, self._base, self._api_key), stream=True)
        self._response = response
        if step.stream and response.status_code < 400:
            self._body = response.iter_bytes()
            return reply_of(response, b"")
        try:
            return reply_of(response, response.read())
        except httpx.RequestError as error:
            return as_error(error, self._base, begun=True)
        finally:
            self.close()

    @property
    def is_cancelled(self) -> bool:
        """Whether ``cancel`` was called."""
        return self._cancelled.is_set()

    def forgives(self, error: BaseException) -> bool:
        """Return whether an error results from ``cancel``."""
        return self.is_cancelled and isinstance(error, ApiError)

    def cancel(self) -> None:
        """End the call; thread-safe. A blocked read fails as if the connection broke."""
        self._cancelled.set()
        response = self._response
        network = None if response is None else response.extensions.get("network_stream")
        if network is not None:
            with suppress(OSError, AttributeError):
                network.get_extra_info("socket").shutdown(socket.SHUT_RDWR)  # wakes a blocked read

    def close(self) -> None:
        """Close the response, which tells the server to stop."""
        response, self._response, self._body = self._response, None, iter(())
        if response is not None:
            response.close()


class Cancellable(SoFar):
    """A stream that other threads may cancel."""

    _exchange: Exchange

    def cancel(self) -> None:
        """Cancel the stream; thread-safe. Its iterator ends."""
        self._exchange.cancel()
