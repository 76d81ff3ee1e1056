"""The access log: one structured line for each choice of each call, without prompts and answers."""

from __future__ import annotations

import sys
import zlib
from datetime import UTC, datetime
from typing import Literal, TextIO

import structlog

from infeng_core.api import printable
from infeng_serve.observability.lines import LineWriter
from infeng_serve.observability.metrics import COMPLETE
from infeng_serve.observers import Record

Format = Literal["logfmt", "json"]

_LONGEST = 200
"""Most characters of a text in a line; the middle of a longer one is left out."""


class AccessLog:
    """An Observer that writes a line when a request has ended, or was rejected."""

    def __init__(self, stream: TextIO | None = None, *, format: Format = "logfmt", sample: float = 1.0) -> None:
        """Write to ``stream`` (default: standard error), from a thread.

        sample: share of complete answers that get a line. They are chosen by id, so that several servers behind each
        other choose the same. Failed and rejected calls always get a line.
        """
        self._lines = LineWriter(sys.stderr if stream is None else stream)
        self._is_json = format == "json"
        self._json = structlog.processors.JSONRenderer()
        self._logfmt = structlog.processors.LogfmtRenderer()
        self._sample = sample

    @property
    def dropped(self) -> int:
        """Lines that were lost because the stream was too slow."""
        return self._lines.dropped

    def accepted(self, record: Record) -> None:
        """Write nothing yet."""

    def tokens(self, record: Record, new: int, now: float) -> None:
        """Write nothing yet."""

    def ended(self, record: Record) -> None:
        """Write the line of a request."""
        is_fine = record.status < 400 and record.finish_reason in COMPLETE
        if not is_fine or self._sample >= 1 or _place(record.id) < self._sample:
            self._write("request", record, {"finish_reason": record.finish_reason, **_figures(record)})

    def rejected(self, record: Record, reason: str) -> None:
        """Write the line of a call that was not accepted."""
        self._write("rejected", record, {"reason": reason})

    def close(self) -> None:
        """Write the queued lines."""
        self._lines.close()

    def _write(self, event: str, record: Record, more: dict[str, object]) -> None:
        values = {
            "timestamp": _time(record.wall),
            "level": "info",
            "event": event,
            "id": record.id,
            "client": record.client,
            "route": record.route,
            "status": record.status,
            "tenant": record.tenant,
            "model": record.model,
            "adapter": record.adapter,
            **more,
            "error": record.error,
        }
        shown = {key: _shown(value) for key, value in values.items() if value not in ("", None)}
        self._lines.write(str(self._json(None, "", shown) if self._is_json else self._logfmt(None, "", shown)))


def _figures(record: Record) -> dict[str, object]:
    """Return token counts, and times in milliseconds, as far as they are known."""
    spans = {
        "queue_ms": (record.submitted, record.started),
        "ttft_ms": (record.arrived, record.first_token),
        "decode_ms": (record.first_token, record.last_token),
        "total_ms": (record.arrived, record.ended),
    }
    return {
        "prompt_tokens": record.prompt_tokens,
        "cached_tokens": record.cached_tokens,
        "completion_tokens": record.completion_tokens,
        "max_tokens": record.max_tokens,
        **{name: round(1000 * (end - begin), 1) for name, (begin, end) in spans.items() if begin and end},
    }


def _shown(value: object) -> object:
    return printable(value, _LONGEST) if isinstance(value, str) else value


def _time(wall: float) -> str:
    return datetime.fromtimestamp(wall, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _place(id_: str) -> float:
    """Return a hash of an id, evenly distributed in [0, 1)."""
    return zlib.crc32(id_.encode("utf-8", "surrogatepass")) / 2**32
