"""Input and output of ``infeng chat``: with line editing and colours on a terminal, plain in a pipe."""

from __future__ import annotations

import sys

from infeng_chat.contract import Delta
from infeng_core.api import UsageError, say, without_controls

PROMPT, GOES_ON = "> ", "... "
MOST_LINE = 16 << 20
"""Most bytes of a line in a pipe; more than any context holds."""

_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"


class Terminal:
    """Standard input, output and error."""

    def __init__(self) -> None:
        """Detect whether they are terminals."""
        self.is_interactive = sys.stdin is not None and sys.stdin.isatty()
        self._is_shown = sys.stdout.isatty()
        self._is_dim = False
        self._ends_line = True
        if self.is_interactive:
            try:
                import readline
            except ImportError:  # a Python without readline
                pass
            else:
                readline.set_auto_history(True)

    def read(self) -> str | None:
        """Return the user's next message, None at the end of the input; a backslash at a line's end continues it."""
        lines: list[str] = []
        while True:
            line = self._line(GOES_ON if lines else PROMPT)
            if line is None:
                return "\n".join(lines) if lines else None
            if not line.endswith("\\"):
                return "\n".join([*lines, line])
            lines.append(line[:-1])

    def show(self, delta: Delta) -> None:
        """Show a piece of an answer; reasoning is dim on a terminal and goes to standard error in a pipe."""
        if delta.reasoning and not self._is_shown:
            is_seen = sys.stderr.isatty()
            sys.stderr.write(without_controls(delta.reasoning) if is_seen else delta.reasoning)
            sys.stderr.flush()
            return
        self._dim(bool(delta.reasoning))
        self._write(delta.reasoning or delta.content)

    def end(self) -> None:
        """End an answer's line."""
        self._dim(False)
        if not self._ends_line:
            self._write("\n")

    def tell(self, *lines: str) -> None:
        """Print lines that are not part of an answer."""
        say(*lines, to_stderr=True)

    def _line(self, prompt: str) -> str | None:
        if not self.is_interactive:
            return _piped()
        if not self._is_shown:
            print(prompt, end="", file=sys.stderr, flush=True)
        try:
            return input(prompt if self._is_shown else "")
        except EOFError:
            self.tell("")
            return None

    def _dim(self, is_dim: bool) -> None:
        if self._is_shown and is_dim != self._is_dim:
            self._is_dim = is_dim
            self._raw(_DIM if is_dim else f"{_PLAIN}\n\n")

    def _write(self, text: str) -> None:
        if self._is_shown:
            text = without_controls(text)
        if text:
            self._ends_line = text.endswith("\n")
            self._raw(text)

    def _raw(self, text: str) -> None:
        sys.stdout.buffer.write(text.encode("utf-8", errors="replace"))
        sys.stdout.buffer.flush()


def _piped() -> str | None:
    """Return the next line of a pipe or file."""
    if sys.stdin is None:
        return None
    data = sys.stdin.buffer.readline(MOST_LINE + 1)
    if len(data) > MOST_LINE:
        raise UsageError("standard input", f"a line has more than {MOST_LINE} bytes", "send shorter lines")
    try:
        return data.decode("utf-8").rstrip("\r\n") if data else None
    except UnicodeDecodeError as error:
        raise UsageError("standard input", f"byte {error.start} of a line is not UTF-8", "send UTF-8") from None
