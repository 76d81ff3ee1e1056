"""The schedule of retries."""

from __future__ import annotations

from dataclasses import dataclass

from infeng_client.errors import ApiError, ConnectionFailedError, OverloadedError


@dataclass(frozen=True, slots=True)
class Retries:
    """Calls are retried after overload (429, 503) and after connection failures before any part of an answer.

    The wait is the server's (``retry-after-ms``, ``Retry-After``), or else doubles each time. Jitter spreads out
    clients that were refused together.
    """

    most: int = 4
    """Attempts after the first; a stream's count restarts when it makes progress."""
    first: float = 0.5
    """Seconds before the first retry."""
    cap: float = 8.0
    """Upper bound of the doubling wait, in seconds."""

    def wait(self, failed: int, error: ApiError, draw: float) -> float | None:
        """Return the seconds to wait after ``failed`` failed attempts, None if the last one was final.

        draw: a uniform random number in [0, 1). The wait is never shorter than the server asked for.
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
