"""Where an engine's time goes: stages, ops, workers, cores and counters; a table and a trace of them.

An engine tells its ``Observers`` what it does, and calls nothing where there are none; a profile is one of them. Only a
start is always timed (``StartupTimes``).
"""
