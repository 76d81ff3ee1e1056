"""The stream of a call's chunks, for callers that block."""
# Made of aio_stream.py by make_sync.py: change that file and run it again.
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
    """The chunks of an answer as they come; an iterator, best used with ``with``.

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
            except BaseException as error:  # Ctrl-C and the cancellation of a task among them
                self.close()
                if not self._exchange.forgives(error):
                    raise

    def finish(self) -> Completion:
        """Read to the end; return the whole answer."""
        for _ in self:
            pass
        return self.completion()

    def close(self) -> None:
        """Stop reading; the server stops working on it."""
        self._over = True
        self._exchange.close()
