"""Names of models and adapters on the hub: ``org/name`` or ``org/name@revision``."""

from __future__ import annotations

import re

NAME = re.compile(
    r"(?P<repo>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(@(?P<revision>(?![\w./-]*(?:\.\.|//))\w[\w./-]*(?<!/)))?",
    re.ASCII,
)
"""A revision: a commit, or a branch or tag with a name that git allows; never a path to another place."""


def is_name(reference: str) -> bool:
    """Return whether ``reference`` has the form of a hub name."""
    return NAME.fullmatch(reference) is not None
