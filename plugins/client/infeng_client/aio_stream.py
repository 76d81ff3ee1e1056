"""A call carried out by asyncio, and the stream of its chunks."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from types import TracebackType

import httpx

from infeng_client.results import Chunk, Completion
from infeng_client.sending import Came, Give, Read, Send, Steps, Wait
from infeng_client.streaming import SoFar, Streaming
from infeng_client.transport import as_error, reply_of, request_of


class AsyncExchange:
    """Carries out steps of one call, over one response at a time."""

    def __init__(self, http: httpx.AsyncClient, base: str, api_key: str | None) -> None:
        """Have no response yet."""
        self._http = http
        self._base = base
        self._api_key = api_key
        self._response: httpx.Response | None = None
        self._body: AsyncIterator[bytes] | None = None

    async def perform(self, step: Send | Read | Wait | Give) -> Came:
        """Do one step; return what came of it."""
        if isinstance(step, Wait):
            await asyncio.sleep(step.seconds)
            return None
        assert not isinstance(step, Give)
        try:
            if isinstance(step, Send):
                return await self._send(step)
            return b"" if self._body is None else await anext(self._body, b"")
        except httpx.RequestError as error:
            return as_error(error, self._base)

    async def _send(self, step: Send) -> Came:
        await self.close()
        response = await self._http.send(request_of(self._http, step, self._base, self._api_key), stream=True)
        self._response = response
        if step.stream and response.status_code < 400:
            self._body = response.aiter_bytes()
            return reply_of(response, b"")
        try:
            return reply_of(response, await response.aread())
        except httpx.RequestError as error:
            return as_error(error, self._base, begun=True)
        finally:
            await self.close()

    async def close(self) -> None:
        """Close the response, which tells the server that nobody reads on."""
        response, self._response, self._body = self._response, None, None
        if response is not None:
            await response.aclose()


class AsyncStream(SoFar):
    """The chunks of an answer as they come; an async iterator, best used with ``async with``.

    ``text`` and ``completion`` say what has come so far. A stream that is closed early is cancelled at the server.
    """

    def __init__(self, exchange: AsyncExchange, streaming: Streaming) -> None:
        """Take what was not begun yet."""
        self._exchange = exchange
        self._streaming = streaming
        self._steps: Steps[None] = streaming.steps()
        self._came: Came = None
        self._ready: deque[Chunk] = deque()
        self._over = False

    async def __aenter__(self) -> AsyncStream:
        """Wait for the first chunk, so that a refused call raises here."""
        await self._fill()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        await self.close()

    def __aiter__(self) -> AsyncStream:
        """Return itself."""
        return self

    async def __anext__(self) -> Chunk:
        """Return the next chunk; raises ApiError, BrokenStreamError among them."""
        await self._fill()
        if self._ready:
            return self._ready.popleft()
        raise StopAsyncIteration

    async def _fill(self) -> None:
        """Go on until there is a chunk or the end."""
        while not self._ready and not self._over:
            try:
                step = self._steps.send(self._came)
                self._came = None
                if isinstance(step, Give):
                    self._ready.extend(step.chunks)
                else:
                    self._came = await self._exchange.perform(step)
            except StopIteration:
                await self.close()
            except BaseException:  # cancellation among them
                await self.close()
                raise

    async def finish(self) -> Completion:
        """Read to the end; return the whole answer."""
        async for _ in self:
            pass
        return self.completion()

    async def close(self) -> None:
        """Stop reading; the server stops working on it."""
        self._over = True
        await self._exchange.close()
