"""Logs go to stderr through structlog, as text for people or JSON for machines.

``INFENG_LOG`` chooses: ``debug``, ``info``, ``warning`` (default), ``error``, and/or ``json``, separated by commas.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any, TextIO

import structlog

from infeng_core.errors import UsageError, printable

_JSON = structlog.processors.JSONRenderer()

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}

_warned: set[str] = set()


@dataclass
class _Settings:
    """What loggers look up at each event, so that those already made follow a change."""

    configured: bool = False
    json: bool = False
    level: int = logging.WARNING


_settings = _Settings()


def configure(json: bool = False, level: str = "warning") -> None:
    """Set format and lowest level of every logger of the engine, those already made included."""
    if level not in LEVELS:
        raise UsageError(f"log level {level!r}", "unknown", f"choose one of {', '.join(LEVELS)}")
    _settings.configured, _settings.json, _settings.level = True, json, LEVELS[level]


def get_logger(name: str) -> structlog.typing.FilteringBoundLogger:
    """Return the logger of a module; the first call reads ``INFENG_LOG``.

    structlog's own configuration, which belongs to the application around the engine, is neither read nor changed.
    """
    if not _settings.configured:
        configure_from(os.environ.get("INFENG_LOG", ""))
    logger: structlog.typing.FilteringBoundLogger = structlog.wrap_logger(
        structlog.PrintLogger(_Stderr()),  # type: ignore[arg-type]  # print() needs write and flush only
        processors=[
            _filter,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG),
        module=name,
    )
    return logger


def warn_once(logger: structlog.typing.FilteringBoundLogger, event: str, **pairs: object) -> None:
    """Log a warning unless this process has logged the same one: several engines meet the same broken plugin."""
    key = repr((event, sorted(pairs.items())))
    if key not in _warned:
        _warned.add(key)
        logger.warning(event, **pairs)


def configure_from(text: str) -> None:
    """Configure from the text of ``INFENG_LOG``."""
    words = [word.strip().lower() for word in text.split(",") if word.strip()]
    unknown = [word for word in words if word != "json" and word not in LEVELS]
    if unknown:
        raise UsageError(f"INFENG_LOG={text}", f"unknown word {unknown[0]!r}", f"known: json, {', '.join(LEVELS)}")
    levels = [word for word in words if word in LEVELS]
    configure(json="json" in words, level=levels[-1] if levels else "warning")


class _Stderr:
    """stderr as it is when a line is written, so that redirecting it works."""

    def write(self, text: str) -> int:
        return _stream().write(text)

    def flush(self) -> None:
        _stream().flush()


def _stream() -> TextIO:
    return sys.stderr if sys.stderr is not None else sys.__stderr__ or open(os.devnull, "w")  # noqa: PTH123


def _filter(_: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    if LEVELS.get(method, logging.ERROR) < _settings.level:
        raise structlog.DropEvent
    return event


def _render(logger: Any, method: str, event: MutableMapping[str, Any]) -> str:
    """Return JSON, or ``infeng: warning: text key=value``, the way command line tools speak: one line for an event."""
    if _settings.json:
        return str(_JSON(logger, method, event))
    level, text = event.pop("level"), event.pop("event")
    trace = event.pop("exception", None)
    words = [f"{key}={_word(value)}" for key, value in event.items() if key not in ("module", "timestamp")]
    lines = [f"infeng: {level}: {' '.join((printable(str(text)), *words))}"]
    lines += [f"  {printable(line)}" for line in trace.splitlines()] if trace else []  # nobody else's line is indented
    return "\n".join(lines)


def _word(value: object) -> str:
    return printable(repr(value) if isinstance(value, str) and " " in value else str(value))
