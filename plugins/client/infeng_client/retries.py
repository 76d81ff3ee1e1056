"""When a call is tried again, and after how long."""

from __future__ import annotations

from dataclasses import dataclass

from infeng_client.errors import ApiError, ConnectionFailedError, OverloadedError


@dataclass(frozen=True, slots=True)
class Retries:
    """Overload (429, 503) and connections that fail before anything was received are tried again.

    A server that says when (``retry-after-ms``, ``Retry-After``) is obeyed; otherwise the wait doubles each time. Both
    have jitter, so that those who were refused together do not come back together.
    """

    most: int = 4
    """Further attempts after the first; a stream that makes progress has as many anew."""
    first: float = 0.5
    """Seconds before the first of them."""
    cap: float = 8.0
    """Seconds that the wait grows to."""

    def wait(self, failed: int, error: ApiError, draw: float) -> float | None:
        """Return the seconds to wait after so many failed attempts, None if that was the last.

        draw: a uniform random number of [0, 1). The wait is never shorter than the server asked for.
        """
        if failed > self.most or not isinstance(error, OverloadedError | ConnectionFailedError):
            return None
        if isinstance(error, ConnectionFailedError) and error.begun:
            return None
        if isinstance(error, OverloadedError) and error.retry_after is not None:
            return error.retry_after + draw * max(error.retry_after / 4, 0.1)
        doublings = min(failed - 1, 30)
        return min(self.cap, self.first * 2.0**doublings) * (1 + draw) / 2


STANDARD = Retries()
