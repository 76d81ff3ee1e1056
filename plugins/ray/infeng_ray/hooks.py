"""Hooks of this plugin: the command ``ray``, and the route that a replica's server has."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from infeng_core.api import hookimpl


@hookimpl
def infeng_commands(settings: Mapping[str, Any]) -> list[object]:
    """Return the command."""
    from infeng_ray.command import RayCommand

    return [RayCommand()]


@hookimpl(optionalhook=True)
def infeng_serve_routes(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``/replica`` for a server that the gateway has started."""
    from infeng_ray.state import routes
    from infeng_ray.tether import hold

    hold(os.environ)
    return dict(routes(os.environ))
