"""Documents of text files: lines of JSONL, articles of WikiText, or a plain text."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import re
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from infeng_convert.api import DOCUMENT_KEYS, document_text

from infeng_core.api import UsageError

MOST_BYTES = 1 << 28
"""Most bytes of one file, decompressed."""

SEPARATOR = "<|endoftext|>"
_HEADING = re.compile(r"^ ?= [^=\n]+ = ?$", re.MULTILINE)  # of a WikiText article; sections have more "="


@dataclass(frozen=True)
class Text:
    """A file and its documents."""

    name: str
    sha256: str
    documents: tuple[str, ...]


def read(path: str | Path) -> Text:
    """Read the documents of a file; raises UsageError if it cannot be read or has none."""
    data = read_bytes(path)
    name = Path(path).name
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}", f"not UTF-8 text (byte {error.start})", "save the file as UTF-8") from None
    is_lines = name.removesuffix(".gz").endswith(".jsonl")
    documents = [_document(line, f"{path}:{at}") for at, line in lines(text, path)] if is_lines else split(text)
    kept = tuple(document for document in documents if document.strip())
    if not kept:
        raise UsageError(f"{path}", "it has no text", "give another file")
    return Text(name, hashlib.sha256(data).hexdigest(), kept)


def read_bytes(path: str | Path) -> bytes:
    """Return the contents of a file, decompressed if its name ends in .gz; raises UsageError."""
    try:
        if not Path(path).is_file():
            raise UsageError(f"{path}", "no such file", "give a text or a .jsonl file")
        with Path(path).open("rb") as file:
            data = file.read(MOST_BYTES + 1)
        if Path(path).name.endswith(".gz"):
            data = gzip.GzipFile(fileobj=io.BytesIO(data)).read(MOST_BYTES + 1)
    except (OSError, ValueError, EOFError, zlib.error) as error:
        raise UsageError(f"{path}", f"cannot be read ({error})", "give a text or a .jsonl file") from None
    if len(data) > MOST_BYTES:
        raise UsageError(f"{path}", f"has more than {MOST_BYTES} bytes", "give a part of it")
    return data


def lines(text: str, path: str | Path) -> list[tuple[int, Any]]:
    """Return the values of a JSONL text with their line numbers; raises UsageError naming file and line."""
    found = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                found.append((number, json.loads(line)))
                if "\\u" in line:  # escapes may encode half of a surrogate pair
                    json.dumps(found[-1], ensure_ascii=False).encode("utf-8")
            except (ValueError, RecursionError) as error:
                raise UsageError(f"{path}:{number}", f"not JSON ({error})", "one value to a line") from None
    return found


def split(text: str) -> list[str]:
    """Return the documents of a plain text: between <|endoftext|>, by WikiText's headings, or the whole."""
    if SEPARATOR in text:
        return text.split(SEPARATOR)
    begins = [match.start() for match in _HEADING.finditer(text)]
    if len(begins) < 2:
        return [text]
    return [text[a:b] for a, b in zip([0, *begins], [*begins, len(text)], strict=True)]


def _document(value: Any, where: str) -> str:
    if (found := document_text(value)) is not None:
        return found
    known = "; ".join(" and ".join(keys) for keys in DOCUMENT_KEYS)
    raise UsageError(where, "neither a text nor an object with one", f"lines have the keys {known}")


@dataclass(frozen=True)
class Window:
    """A part of a document that fits into the context; ``ids`` begins with BOS if the tokenizer adds one."""

    text: int
    """Index of the file."""
    document: int
    part: int
    ids: tuple[int, ...]

    @property
    def predicted(self) -> int:
        """Number of tokens with a predecessor."""
        return len(self.ids) - 1


def windows(ids: Sequence[int], bos: int | None, context: int, text: int, document: int) -> list[Window]:
    """Split a document's ids into windows of at most ``context`` tokens, without overlap.

    Each window begins with ``bos`` if the ids do. A window without predicted tokens is left out.
    """
    prefix = tuple(ids[:1]) if bos is not None and ids[:1] == [bos] else ()
    body = ids[len(prefix) :]
    size = context - len(prefix)
    parts = [prefix + tuple(body[begin : begin + size]) for begin in range(0, len(body), size)]
    found = [Window(text, document, part, one) for part, one in enumerate(parts)]
    return [window for window in found if window.predicted > 0]


def first_tokens(windows: Iterable[Window], most: int) -> list[Window]:
    """Return the first windows with ``most`` predicted tokens in total, the last one truncated."""
    found: list[Window] = []
    left = most
    for window in windows:
        if left <= 0:
            break
        found.append(replace(window, ids=window.ids[: left + 1]))
        left -= found[-1].predicted
    return found
