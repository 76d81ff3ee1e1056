"""Progress of long work: a bar on a terminal, else a line now and then."""

from __future__ import annotations

import sys
import time
from typing import Any, Literal, Self

Show = bool | Literal["lines"]
"""True: a bar if stderr is a terminal; "lines": lines if it is none; False: nothing."""

EVERY = 10.0  # seconds between two lines


class Progress:
    """Counts up to ``total`` of some unit (bytes by default)."""

    def __init__(self, total: int, what: str, show: Show = True) -> None:
        """Start at 0; ``what`` is a participle, such as converting."""
        self._total, self._what, self._done = max(total, 1), what, 0
        self._bar: Any = None
        is_terminal = sys.stderr is not None and sys.stderr.isatty()
        self._has_lines = show == "lines" and not is_terminal and sys.stderr is not None
        self._start = self._said = time.monotonic()
        if show and is_terminal:
            from tqdm import tqdm  # 30 ms, which a start without a conversion can save

            self._bar = tqdm(total=total, desc=what, unit="B", unit_scale=True)

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *error: object) -> None:
        """Leave the bar as it stands."""
        if self._bar is not None:
            self._bar.close()

    def update(self, done: int) -> None:
        """Count ``done`` more units."""
        self._done += done
        if self._bar is not None:
            self._bar.update(done)
        now = time.monotonic()
        if self._has_lines and now - self._said >= EVERY:
            self._said = now
            print(f"{self._what}: {self._done / self._total:.0%} in {now - self._start:.0f} s", file=sys.stderr)
