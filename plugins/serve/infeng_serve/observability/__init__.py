"""Watching the server: metrics, traces, the access log, and a live view of all that in a terminal."""
