"""The stream of a call's chunks for asyncio."""

from __future__ import annotations

from collections import deque
from types import TracebackType

from infeng_client.aio_exchange import AsyncExchange
from infeng_client.results import Chunk, Completion
from infeng_client.sending import Came, Give, Steps
from infeng_client.streaming import SoFar, Streaming


class AsyncStream(SoFar):
    """An async iterator over the chunks of an answer, best used with ``async with``.

    ``text`` and ``completion`` return the answer so far. Closing a stream early cancels the call at the server.
    """

    def __init__(self, exchange: AsyncExchange, streaming: Streaming) -> None:
        """Wrap a stream that has not begun."""
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
        """Return the next chunk; raises ApiError, such as BrokenStreamError."""
        await self._fill()
        if self._ready:
            return self._ready.popleft()
        raise StopAsyncIteration

    async def _fill(self) -> None:
        """Perform steps until there is a chunk or the end."""
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
            except BaseException as error:  # including Ctrl-C and the cancellation of a task
                await self.close()
                if not self._exchange.forgives(error):
                    raise

    async def finish(self) -> Completion:
        """Read to the end and return the whole answer."""
        async for _ in self:
            pass
        return self.completion()

    async def close(self) -> None:
        """Stop reading, which cancels the call at the server."""
        self._over = True
        await self._exchange.close()
