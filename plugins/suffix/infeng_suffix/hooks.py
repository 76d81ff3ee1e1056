"""Hook of this plugin: the drafters ``ngram`` and ``suffix``."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from infeng_core.api import hookimpl


@hookimpl
def infeng_drafters(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the drafters' factories, ``suffix`` with a store of its own."""
    from infeng_suffix import ngrams
    from infeng_suffix.drafter import SuffixDrafter
    from infeng_suffix.store import Store

    return {
        "ngram": ngrams.Ngrams,
        "suffix": partial(SuffixDrafter, Store(settings["memory"], settings["tenant_memory"])),
    }
