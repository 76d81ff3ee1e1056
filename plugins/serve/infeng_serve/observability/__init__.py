"""Metrics, traces, the access log, and a live view in a terminal."""
