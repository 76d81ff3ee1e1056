"""Plugins: the hooks, the discovery of plugins, and the checks on their results."""
