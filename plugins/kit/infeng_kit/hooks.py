"""The hook of this plugin."""

from __future__ import annotations

from infeng_core.api import Command, hookimpl


@hookimpl(optionalhook=True)
def infeng_plugins_verbs() -> list[Command]:
    """Return the verbs of `infeng plugins`."""
    from infeng_kit.bench import Bench
    from infeng_kit.check import Check
    from infeng_kit.new import New
    from infeng_kit.rust_crate import RustCrate

    return [New(), Check(), Bench(), RustCrate()]
