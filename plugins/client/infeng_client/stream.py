"""A call carried out by blocking, and the stream of its chunks."""

from __future__ import annotations

import socket
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from types import TracebackType

import httpx

from infeng_client.errors import ApiError
from infeng_client.results import Chunk, Completion
from infeng_client.sending import Came, Give, Read, Send, Steps, Wait
from infeng_client.streaming import SoFar, Streaming
from infeng_client.transport import as_error, reply_of, request_of


class Exchange:
    """Carries out steps of one call, over one response at a time."""

    def __init__(self, http: httpx.Client, base: str, api_key: str | None) -> None:
        """Have no response yet."""
        self._http = http
        self._base = base
        self._api_key = api_key
        self._response: httpx.Response | None = None
        self._body: Iterator[bytes] = iter(())
        self.cancelled = threading.Event()

    def perform(self, step: Send | Read | Wait | Give) -> Came:
        """Do one step; return what came of it."""
        if isinstance(step, Wait):
            self.cancelled.wait(step.seconds)
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

    def cancel(self) -> None:
        """From any thread: end what runs. A read that waits for the server ends as if the connection broke."""
        self.cancelled.set()
        response = self._response
        network = None if response is None else response.extensions.get("network_stream")
        if network is not None:
            with suppress(OSError, AttributeError):
                network.get_extra_info("socket").shutdown(socket.SHUT_RDWR)  # wakes a thread that reads

    def close(self) -> None:
        """Close the response, which tells the server that nobody reads on."""
        response, self._response, self._body = self._response, None, iter(())
        if response is not None:
            response.close()


class Stream(SoFar):
    """The chunks of an answer as they come; an iterator, best used with ``with``, which closes it.

    ``text`` and ``completion`` say what has come so far. A stream that is closed early is cancelled at the server.
    """

    def __init__(self, exchange: Exchange, streaming: Streaming) -> None:
        """Take what was not begun yet."""
        self._exchange = exchange
        self._streaming = streaming
        self._steps: Steps[None] = streaming.steps()
        self._came: Came = None
        self._ready: deque[Chunk] = deque()
        self._over = False

    def __enter__(self) -> Stream:
        """Wait for the first chunk, so that a refused call raises here."""
        self._fill()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()

    def __iter__(self) -> Stream:
        """Return itself."""
        return self

    def __next__(self) -> Chunk:
        """Return the next chunk; raises ApiError, BrokenStreamError among them."""
        self._fill()
        if self._ready:
            return self._ready.popleft()
        raise StopIteration

    def _fill(self) -> None:
        """Go on until there is a chunk or the end."""
        while not self._ready and not self._over:
            if self._exchange.cancelled.is_set():
                self.close()
                return
            try:
                step = self._steps.send(self._came)
                self._came = None
                if isinstance(step, Give):
                    self._ready.extend(step.chunks)
                else:
                    self._came = self._exchange.perform(step)
            except StopIteration:
                self.close()
            except BaseException as error:
                self.close()
                if not (isinstance(error, ApiError) and self._exchange.cancelled.is_set()):
                    raise

    def finish(self) -> Completion:
        """Read to the end; return the whole answer."""
        for _ in self:
            pass
        return self.completion()

    def cancel(self) -> None:
        """From any thread: end the stream; whoever iterates over it sees its end."""
        self._exchange.cancel()

    def close(self) -> None:
        """Stop reading; the server stops working on it."""
        self._over = True
        self._exchange.close()
