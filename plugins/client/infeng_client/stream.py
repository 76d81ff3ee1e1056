"""The stream of a call's chunks with blocking I/O."""
# Generated from aio_stream.py by make_sync.py: change that file and run it again.
# fmt: off
# ruff: noqa: I001 - names and imports stand in the order of the source

from __future__ import annotations

from collections import deque
from types import TracebackType

from infeng_client.exchange import Exchange
from infeng_client.results import Chunk, Completion
from infeng_client.sending import Came, Give, Steps
from infeng_client.exchange import Cancellable
from infeng_client.streaming import Streaming


class Stream(Cancellable):
    """An iterator over the chunks of an answer, best used with ``with``.

    ``text`` and ``completion`` return the answer so far. Closing a stream early cancels the call at the server.
    """

    def __init__(self, exchange: Exchange, streaming: Streaming) -> None:
        """Wrap a stream that has not begun."""
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
        """Return the next chunk; raises ApiError, such as BrokenStreamError."""
        self._fill()
        if self._ready:
            return self._ready.popleft()
        raise StopIteration

    def _fill(self) -> None:
        """Perform steps until there is a chunk or the end."""
        while not self._ready and not self._over:
            if self._exchange.is_cancelled:
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
            except BaseException as error:  # including Ctrl-C and the cancellation of a task
                self.close()
                if not self._exchange.forgives(error):
                    raise

    def finish(self) -> Completion:
        """Read to the end and return the whole answer."""
        for _ in self:
            pass
        return self.completion()

    def close(self) -> None:
        """Stop reading, which cancels the call at the server."""
        self._over = True
        self._exchange.close()
