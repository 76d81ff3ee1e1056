"""Commands of the engine's command line. Only this package and hooks.py import the engine."""
