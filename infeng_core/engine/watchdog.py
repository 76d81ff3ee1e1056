"""Notices a step that does not end, and says where it is: which part of the engine, which method of which plugin.

A step pays one store for each of its parts. All else happens on a thread that looks a few times in the time that a step
may take: a plugin's method that sleeps, or never comes back, holds all requests and raises nothing.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from time import monotonic

from infeng_core.log import get_logger
from infeng_core.plug.border import inside
from infeng_core.record import Record

_log = get_logger(__name__)

LOOKS = 4
"""How often it looks in the time after which a step is named."""

Moment = tuple[object, int, str]
"""The work under way, another object for each step, the thread that does it, and what it is, "" for a step."""


class Place:
    """The part of the engine in which a step is."""

    __slots__ = ("part",)

    def __init__(self) -> None:
        """Be nowhere."""
        self.part: str | None = None
        """None: it sleeps, for as long as it likes."""


class Stall(Record):
    """A step that does not end."""

    place: str
    """For example "backend native" or "plugin slow: scheduler slow: order()"."""
    seconds: float
    """Since it began, when it was looked at last."""


class Watchdog:
    """Looks at the steps of one engine."""

    def __init__(
        self, moment: Callable[[], Moment | None], place: Place, helper: Callable[[], int | None], seconds: float
    ) -> None:
        """Look at nothing yet.

        moment: what is under way, None for nothing. helper: the thread that asks logit processors beside a step.
        seconds: after which a step is named.
        """
        self.stall: Stall | None = None
        """The step that does not end; None while all goes on."""
        self._moment = moment
        self._place = place
        self._helper = helper
        self._seconds = seconds
        self._since: tuple[object, float] | None = None  # what was under way at the last look, since when
        self._said: tuple[str, float] | None = None  # where it was, and for how long
        self._bell = threading.Lock()  # held until it is to stop
        self._bell.acquire()

    def start(self) -> None:
        """Begin, on a thread that ends with ``stop``, or with this object."""
        interval = self._seconds / LOOKS
        threading.Thread(
            target=_watch, args=(weakref.ref(self), self._bell, interval), name="infeng-watchdog", daemon=True
        ).start()

    def stop(self) -> None:
        """Look no more.

        Ctrl-C may come at any line of the caller, who then calls this again. So no lock is taken here: an Event would
        keep its own if the interrupt came while it is set.
        """
        if self._bell.locked():
            self._bell.release()
        self.stall = None

    def look(self, now: float) -> None:
        """Compare what is under way with the last look; ``now`` in seconds."""
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
        """Log where a step is: at once, wherever else it is later, and each time that it has taken twice as long."""
        if self._said is None or self._said[0] != place or seconds >= 2 * self._said[1]:
            self._said = place, seconds
            _log.warning("a step does not end, and all requests wait", where=place, seconds=round(seconds))


HELPED = "the sampler"
"""The part that waits for what another thread asks of logit processors."""

STREAMS = "detokenizers and streams"
"""The part that gives callers their text, and tells the scheduler."""


def _watch(watched: weakref.ref[Watchdog], bell: threading.Lock, interval: float) -> None:
    while not bell.acquire(timeout=interval):
        watchdog = watched()
        if watchdog is None:
            return
        watchdog.look(monotonic())
        del watchdog
