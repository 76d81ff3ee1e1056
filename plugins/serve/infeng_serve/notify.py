"""What a supervisor is told: systemd's notify protocol, by which a unit is started, alive and stopping (sd_notify(3)).

Datagrams of lines NAME=VALUE go to the socket that ``NOTIFY_SOCKET`` names; without it nothing is sent.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Mapping

from infeng_core.api import get_logger

_log = get_logger(__name__)


class Supervisor:
    """The supervisor of this process, if it has one."""

    def __init__(self, environment: Mapping[str, str] = os.environ, pid: int | None = None) -> None:
        """Read ``NOTIFY_SOCKET``, ``WATCHDOG_USEC`` and ``WATCHDOG_PID`` of the environment. pid: of this process."""
        place = environment.get("NOTIFY_SOCKET", "")
        self._address = "\0" + place[1:] if place.startswith("@") else place if place.startswith("/") else ""
        period, whose = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID", "")
        is_mine = whose in ("", str(pid or os.getpid()))
        self.seconds = int(period) / 2e6 if period.isdecimal() and len(period) < 19 and is_mine else 0.0
        """Seconds between two signs of life, half of the watchdog's patience; 0: it wants none."""

    def ready(self, status: str) -> None:
        """Tell that the service has started."""
        self._send("READY=1", f"STATUS={status}")

    def stopping(self) -> None:
        """Tell that the service ends."""
        self._send("STOPPING=1", "STATUS=Draining")

    async def watch(self, is_well: Callable[[], bool]) -> None:
        """Give signs of life while ``is_well``; returns at once if the supervisor wants none."""
        while self.seconds and self._address:
            if is_well():
                self._send("WATCHDOG=1")
            await asyncio.sleep(self.seconds)

    def _send(self, *lines: str) -> None:
        if not self._address:
            return
        text = "\n".join(line.replace("\n", " ") for line in lines)
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.setblocking(False)
                sender.sendto(text.encode("utf-8"), self._address)
        except OSError as error:
            _log.warning("the supervisor cannot be told", reason=error.strerror or str(error))
