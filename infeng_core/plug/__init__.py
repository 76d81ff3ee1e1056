"""Plugins: the hooks, the discovery of plugins, and the checks on their results."""

import pluggy

PROJECT = "infeng"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)
"""Marks a function of a plugin's ``python`` module as an implementation of the hook of the same name."""
