"""Calibration text as token ids: from a file, or drawn from the model itself."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from infeng_core.api import UsageError, document_text, read_text

LENGTH = 512  # tokens of one text, at most
TOKENS = 64 * LENGTH  # of a file
WRITTEN = 32 * LENGTH  # that a model writes itself, which takes longer than reading them
MAX_BYTES = 256 << 20
LEAST = 256  # tokens, fewer say nothing

Encode = Callable[[Sequence[str]], list[list[int]]]


def read(
    path: Path, encode: Encode, *, context: int, bos: int | None = None, tokens: int = TOKENS
) -> list[NDArray[np.int32]]:
    """Return the first ``tokens`` tokens of a file in texts of up to 512, or of ``context`` where that is less.

    A ``.jsonl`` file has a document on each line, in the form of its keys (``document_text``), else its strings one
    below the other; another file is one of UTF-8 text whose documents are some paragraphs. No text holds two documents,
    and each begins with ``bos`` where ``encode`` puts it. Raises UsageError for what is no such file.
    """
    length, held = min(LENGTH, context), 0
    found: list[NDArray[np.int32]] = []
    for document in _documents(path):
        for text in _cut(encode([document])[0], bos, length):
            found.append(text[: tokens - held])
            held += len(found[-1])
            if held == tokens:
                return found
    if held < LEAST:
        why = f"has {held} tokens of text, {LEAST} are the least"
        raise UsageError(f"--calibrate {path}", why, "give more text of the kind that the model will see")
    return found


def _cut(ids: Sequence[int], bos: int | None, length: int) -> Iterator[NDArray[np.int32]]:
    """Yield a document in parts of ``length`` ids at most, each behind ``bos`` where the document is."""
    first = list(ids[:1]) if bos is not None and ids[:1] == [bos] else []
    step = max(1, length - len(first))
    for begin in range(len(first), len(ids), step):
        yield np.array([*first, *ids[begin : begin + step]], np.int32)


def _documents(path: Path) -> Iterator[str]:
    text = read_text(path, MAX_BYTES, UsageError, "give a text file, or auto, or none")
    if path.suffix == ".jsonl":
        for number, line in enumerate(text.split("\n"), 1):  # JSON's strings may hold other ends of lines
            if line.strip():
                yield _strings(line, f"--calibrate {path}, line {number}")
        return
    gathered = ""
    for paragraph in text.split("\n\n"):  # of stories and articles: some thousand characters at a time
        gathered += paragraph + "\n\n"
        if len(gathered) >= 4096:
            yield gathered
            gathered = ""
    if gathered.strip():
        yield gathered


def _strings(line: str, place: str) -> str:
    try:
        document = json.loads(line)
        if "\\u" in line:  # escapes may write half of a surrogate pair
            json.dumps(document, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError) as error:
        raise UsageError(place, f"is no JSON ({error})", "write one JSON object on each line") from None
    if (text := document_text(document)) is not None:
        return text
    values = document.values() if isinstance(document, dict) else [document]
    return "\n".join(value for value in values if isinstance(value, str))
