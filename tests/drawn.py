"""The number of examples that hypothesis draws: few in every run, all in nightly runs."""

import os

NIGHTLY = "INFENG_NIGHTLY"
"""``make test-nightly`` sets it, and runs the properties of the fast suite too."""


def examples(count: int) -> int:
    """Return the number of examples of a property: ``count`` in nightly runs, else an eighth of it, at least ten."""
    return count if os.environ.get(NIGHTLY) else max(10, count // 8)
