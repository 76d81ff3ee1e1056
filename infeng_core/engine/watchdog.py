"""Detects a step that does not end, and reports its place: the part of the engine, the method of the plugin.

A step pays one store for each of its parts. All other work happens on a thread that checks a few times within the
allowed time of a step: a plugin's method that sleeps or never returns blocks all requests and raises nothing.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from time import monotonic

from infeng_core.log import get_logger
from infeng_core.plug.plugin_boundary import inside
from infeng_core.record import Record

_log = get_logger(__name__)

LOOKS = 4
"""Number of checks within the time after which a step is reported."""

Moment = tuple[object, int, str]
"""The work under way (a new object for each step), its thread, and its name, "" for a step."""


class Place:
    """The part of the engine that a step is in."""

    __slots__ = ("part",)

    def __init__(self) -> None:
        """Start outside of any part."""
        self.part: str | None = None
        """The name of the part; None while it may sleep without limit."""


class Stall(Record):
    """A step that does not end."""

    place: str
    """The place, such as "backend native" or "plugin slow: scheduler slow: order()"."""
    seconds: float
    """Seconds from its begin to the latest check."""


class Watchdog:
    """Checks the steps of one engine."""

    def __init__(
        self, moment: Callable[[], Moment | None], place: Place, helper: Callable[[], int | None], seconds: float
    ) -> None:
        """Start without checks.

        moment: the work under way, None for nothing. helper: the thread that calls logit processors beside a step.
        seconds: after which a step is reported.
        """
        self.stall: Stall | None = None
        """The step that does not end, or None."""
        self._moment = moment
        self._place = place
        self._helper = helper
        self._seconds = seconds
        self._since: tuple[object, float] | None = None  # the work at the last check, and its start
        self._said: tuple[str, float] | None = None  # its reported place, and for how long
        self._bell = threading.Lock()  # held until the thread must stop
        self._bell.acquire()

    def start(self) -> None:
        """Start a thread that ends with ``stop``, or with this object."""
        interval = self._seconds / LOOKS
        threading.Thread(
            target=_watch, args=(weakref.ref(self), self._bell, interval), name="infeng-watchdog", daemon=True
        ).start()

    def stop(self) -> None:
        """Stop checking.

        Ctrl-C may come at any line of the caller, who then calls this again. So no lock is taken here: an Event would
        keep its own if the interrupt came while it is set.
        """
        if self._bell.locked():
            self._bell.release()
        self.stall = None

    def look(self, now: float) -> None:
        """Compare the work under way with the last check; ``now`` in seconds."""
        moment = self._moment()
        part = moment and (moment[2] or self._place.part)
        if moment is None or part is None or self._since is None or self._since[0] is not moment[0]:
            if self.stall is not None:
                _log.warning("the step that was slow has ended", where=self.stall.place)
            self._since = None if moment is None or part is None else (moment[0], now)
            self._said = self.stall = None
            return
        seconds = now - self._since[1]
        if seconds >= self._seconds:
            place = inside(moment[1]) or (part == HELPED and inside(self._helper())) or part
            self.stall = Stall(place, seconds)
            self._say(place, seconds)

    def _say(self, place: str, seconds: float) -> None:
        """Log the place of a step: at once, at each later change of place, and each time that its duration has
        doubled."""
        if self._said is None or self._said[0] != place or seconds >= 2 * self._said[1]:
            self._said = place, seconds
            _log.warning("a step does not end, and all requests wait", where=place, seconds=round(seconds))


HELPED = "the sampler"
"""The part that waits for logit processors on another thread."""

STREAMS = "detokenizers and streams"
"""The part that gives callers their text and updates the scheduler."""


def _watch(watched: weakref.ref[Watchdog], bell: threading.Lock, interval: float) -> None:
    while not bell.acquire(timeout=interval):
        watchdog = watched()
        if watchdog is None:
            return
        watchdog.look(monotonic())
        del watchdog
