"""Whether an engine can be used: it is open, and belongs to this process."""

from __future__ import annotations

import os

from infeng_core.errors import UsageError


class Lifetime:
    """From an engine's making to its end. Any thread may ask."""

    def __init__(self) -> None:
        """Begin, in the process that runs now."""
        self.is_open = True
        """Whether requests are accepted."""
        self.is_released = False
        """Whether memory and threads were released."""
        self._process = os.getpid()

    @property
    def is_forked(self) -> bool:
        """Whether this process is a fork of the engine's, which lacks its threads."""
        return os.getpid() != self._process

    def check(self) -> None:
        """Raise UsageError if the engine is closed or belongs to another process."""
        if not self.is_open:
            raise UsageError("engine", "it is closed", "make a new one")
        self.check_process()

    def check_process(self) -> None:
        """Raise UsageError if the engine belongs to another process."""
        if self.is_forked:
            why = f"it belongs to process {self._process}, and its threads did not come along into this fork of it"
            raise UsageError("engine", why, "make one here, or start processes by spawn")
