"""Where an engine's time goes: stages, ops, workers, cores and counters; a table and a trace of them.

Nothing here runs unless a profile is being taken: ``Engine.profile`` puts timed stand-ins before the engine's parts and
takes them away again. Only a start is always timed (``Laps``).
"""
