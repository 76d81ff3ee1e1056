"""Where an engine's time goes: stages, ops, workers, cores and counters; a table and a trace of them.

An engine tells its ``Observers`` what it does, and calls nothing where there are none; a profile is one of them. Only a
start is always timed (``Laps``).
"""

from infeng_core.telemetry.laps import Laps
from infeng_core.telemetry.observers import Observer, Observers, StepReport
from infeng_core.telemetry.profile import Profile, measuring

__all__ = ["Laps", "Observer", "Observers", "Profile", "StepReport", "measuring"]
