"""Generate the blocking client from the asyncio client: ``python make_sync.py`` (``--check`` only compares).

``client.py`` and ``stream.py`` are generated from ``aio.py`` and ``aio_stream.py`` by replacing words.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

FOLDER = Path(__file__).parent / "infeng_client"
MADE = {"aio.py": "client.py", "aio_stream.py": "stream.py"}
NOTE = """# Generated from {source} by make_sync.py: change that file and run it again.
# fmt: off
# ruff: noqa: I001 - names and imports stand in the order of the source
"""

WORDS = {
    "async iterator": "iterator",
    "async with": "with",
    "async def": "def",
    "async for": "for",
    "await ": "",
    r"AsyncGenerator\[(.+), None\]": r"Generator[\1, None, None]",
    "AsyncGenerator": "Generator",
    r"AsyncStream\(SoFar\)": "Stream(Cancellable)",
    "(from infeng_client).streaming import SoFar,": r"\1.exchange import Cancellable\n\1.streaming import",
    "httpx.AsyncClient": "httpx.Client",
    "Async(Client|Stream|Exchange)": r"\1",
    "infeng_client.aio_": "infeng_client.",
    "StopAsyncIteration": "StopIteration",
    "__a(enter|exit|iter|next)__": r"__\1__",
    r"\baclose\b": "close",
    "The client for asyncio.": "The blocking client.",
    "chunks for asyncio.": "chunks with blocking I/O.",
    "An async iterator": "An iterator",
    "Tasks of one event loop may": "Threads may",
    r"Cancelling the task, or closing the iterator \(``contextlib.aclosing``\),": "Leaving the loop early, or Ctrl-C,",
}
"""Patterns and their replacements, applied in order."""


def made_of(source: str) -> str:
    """Return the blocking module generated from the asyncio module ``source``."""
    text = (FOLDER / source).read_text("utf-8")
    for pattern, replacement in WORDS.items():
        text = re.sub(pattern, replacement, text)
    left = re.search(r"async|await|aio_", text, re.IGNORECASE)
    if left is not None:
        line = text[: left.start()].count("\n") + 1
        raise ValueError(f"{source}: {text.splitlines()[line - 1].strip()!r} is not translated: add its words to WORDS")
    docstring, rest = text.split("\n", 1)
    return f"{docstring}\n{NOTE.format(source=source)}{rest}"


def stale() -> list[str]:
    """Return the generated files that are out of date."""
    return [made for source, made in MADE.items() if (FOLDER / made).read_text("utf-8") != made_of(source)]


if __name__ == "__main__":
    if "--check" in sys.argv[1:]:
        sys.exit(f"not current: {', '.join(found)}" if (found := stale()) else 0)
    for source, made in MADE.items():
        (FOLDER / made).write_text(made_of(source), "utf-8")
