"""Failures of the operating system while a model is read, as errors that a user understands."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from infeng_core.errors import ModelError


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn an OSError of the block into a ModelError that names the file, or ``path`` where the system names none."""
    try:
        yield
    except OSError as error:
        why = f"cannot be read ({error.strerror or error})"
        raise ModelError(f"{error.filename or path}", why, "check the file and its permissions") from None
