"""The stream of a call's chunks for asyncio."""

from __future__ import annotations

from collections import deque
from types import TracebackType

from infeng_client.aio_exchange import AsyncExchange
from infeng_client.results import Chunk, Completion
from infeng_client.sending import Came, Give, Steps
from infeng_client.streaming import SoFar, Streaming


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
            if self._exchange.is_cancelled:
                await self.close()
                return
            try:
                step = self._steps.send(self._came)
                self._came = None
                if isinstance(step, Give):
                    self._ready.extend(step.chunks)
                else:
                    self._came = await self._exchange.perform(step)
            except StopIteration:
                await self.close()
            except BaseException as error:  # Ctrl-C and the cancellation of a task among them
                await self.close()
                if not self._exchange.forgives(error):
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
