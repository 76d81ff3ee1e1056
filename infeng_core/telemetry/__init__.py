"""Where an engine's time goes: stages, ops, workers, cores and counters, as a table and as a trace.

An engine reports its work to its ``Observers``, and makes no call if there are none; a profile is one of them. Only
the start is always timed (``StartupTimes``).
"""
