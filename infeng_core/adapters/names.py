"""Valid names of adapters, and valid references to their files."""

from __future__ import annotations

import re
from pathlib import Path

from infeng_core.errors import AdapterError
from infeng_core.formats import hub_names
from infeng_core.formats.adapters.bounds import MAX_MAGNITUDE

BASE = "base"
"""The name of the model without an adapter, wherever a name is expected."""

SCHEME = re.compile(r"[a-z][a-z0-9+.-]*://")
"""The scheme at the beginning of names outside the hub."""

_NAME = re.compile(r"\w[\w.-]{0,127}")


def base_names(reference: str) -> frozenset[str]:
    """Return the names that mean the base model: "base", its reference and the last part of that."""
    return frozenset({BASE, reference, Path(reference.partition("@")[0]).name})


def is_name(name: str) -> bool:
    """Return whether an adapter may have the name, as ``check_name`` says."""
    return _NAME.fullmatch(name) is not None


def check_name(name: object, base: frozenset[str]) -> str:
    """Return ``name`` if an adapter may have it; raises AdapterError.

    Names are used in URLs, file names and lists with commas, so they hold letters, digits, ``_``, ``.`` and ``-`` and
    begin with a letter, a digit or ``_``.
    """
    remedy = "use letters, digits, _, - and ., at most 128, not beginning with - or ."
    if not isinstance(name, str) or not name:
        raise AdapterError(f"adapter name {name!r}", "it is empty or not a text", remedy)
    if name in base:
        raise AdapterError(f"adapter name {name!r}", "it means the base model", "choose another")
    if not is_name(name):
        raise AdapterError(f"adapter name {name!r}", "it has characters that a name may not have", remedy)
    return name


def check_source(name: str, reference: object, scale: object) -> tuple[str, float]:
    """Return reference and scale if the reference is plausible; nothing is read. Raises AdapterError.

    A path is made absolute. A path that does not exist is left to locators if it has the form of a hub name or a
    scheme, as in store://name.
    """
    remedy = f"1 leaves it as trained, it is at most {MAX_MAGNITUDE:g}"
    if isinstance(scale, bool) or not isinstance(scale, (int, float)) or not abs(scale) <= MAX_MAGNITUDE:
        shown = f" {scale:g}" if isinstance(scale, float) else ""
        raise AdapterError(f"adapter {name}", f"its scale{shown} is not a finite number that fits", remedy)
    text = str(reference) if isinstance(reference, Path) else reference
    if not isinstance(text, str) or not text or "\0" in text:
        raise AdapterError(
            f"adapter {name}", f"{reference!r} is not a path", "give a directory, an artifact or org/name"
        )
    try:
        path = Path(text).expanduser()
        if path.exists():
            return str(path.absolute()), float(scale)
    except (OSError, RuntimeError):  # too long, unreadable, or with an unknown user
        pass
    if hub_names.is_name(text) or SCHEME.match(text):
        return text, float(scale)
    remedy = "give a PEFT directory, an adapter artifact or a hub name org/name"
    raise AdapterError(f"adapter {name}", f"{text} is not there", remedy)
