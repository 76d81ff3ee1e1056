"""Writes lines to a file from a thread, so that callers never wait for a disk or a full pipe."""

from __future__ import annotations

import contextlib
import queue
import threading
from typing import TextIO

MOST = 8192
"""Most queued lines; further ones are dropped and counted."""


class LineWriter:
    """Writes lines in order. Thread-safe."""

    def __init__(self, stream: TextIO) -> None:
        """Start the thread; the caller closes ``stream``."""
        self._stream = stream
        self._queue: queue.Queue[str | None] = queue.Queue(MOST)
        self.dropped = 0
        """Lines that were dropped or could not be written."""
        self._thread = threading.Thread(target=self._run, name="infeng-lines", daemon=True)
        self._thread.start()

    def write(self, line: str) -> None:
        """Queue a line."""
        try:
            self._queue.put_nowait(line)
        except queue.Full:
            self.dropped += 1

    def close(self, timeout: float = 2.0) -> None:
        """Write the queued lines and stop; lines not written within ``timeout`` seconds are lost."""
        with contextlib.suppress(queue.Full):
            self._queue.put(None, timeout=timeout)
        self._thread.join(timeout)

    def _run(self) -> None:
        is_open = True
        while is_open:
            lines = [self._queue.get()]
            with contextlib.suppress(queue.Empty):
                while len(lines) < MOST:
                    lines.append(self._queue.get_nowait())
            text = [line for line in lines if line is not None]
            is_open = len(text) == len(lines)
            try:
                self._stream.write("".join(f"{line}\n" for line in text))
                self._stream.flush()
            except (OSError, ValueError):  # the disk is full, or the stream or the pipe's reader was closed
                self.dropped += len(text)
