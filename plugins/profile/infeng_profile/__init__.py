"""Profiles of an engine: where its time goes, as a table and as a trace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from infeng_profile.measuring import Profile, profile

__all__ = ["Profile", "profile"]


def __getattr__(name: str) -> Any:
    """Import a name with the engine when it is first asked for: the command line needs neither."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from infeng_profile import measuring

    return getattr(measuring, name)
