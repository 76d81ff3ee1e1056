"""How many examples hypothesis draws: a part of them with every run, all at night."""

import os

NIGHTLY = "INFENG_NIGHTLY"
"""``make test-nightly`` sets it, and runs the properties of the fast suite too."""


def examples(count: int) -> int:
    """Return how many examples a property is tried on: ``count`` at night, else an eighth of them, at least ten."""
    return count if os.environ.get(NIGHTLY) else max(10, count // 8)
