"""The native backend: a family's graph becomes a program of the native core."""
