"""The markers of hooks, for the functions that declare and implement them."""

import pluggy

PROJECT = "infeng"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)
"""Marks a function of a plugin's ``python`` module as an implementation of the hook of the same name."""
