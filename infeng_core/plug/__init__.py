"""Everything that can differ: hooks, discovery, manifests, and the choice of a kernel for each operation."""

import pluggy

PROJECT = "infeng"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)
"""Marks a function of a plugin's ``python`` module as an implementation of the hook of the same name."""
