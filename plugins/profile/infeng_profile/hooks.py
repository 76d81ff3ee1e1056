"""The hook of this plugin."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from infeng_core.api import RunOptions, hookimpl


@hookimpl
def infeng_run_options(settings: Mapping[str, Any]) -> dict[str, RunOptions]:
    """Return ``--profile`` and ``--profile-stacks``."""
    from infeng_profile.options import ProfileOptions

    return {"profile": ProfileOptions()}
