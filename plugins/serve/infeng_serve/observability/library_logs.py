"""Logs of other libraries in the form of the engine's."""

from __future__ import annotations

import logging

from infeng_core.api import get_logger


def capture_library_logs() -> None:
    """Print what other libraries log through Python's logging, warnings and above, as events of the engine.

    This is for commands, whose process is their own; a surrounding application decides for itself.
    """
    root = logging.getLogger()
    if not any(getattr(handler, "is_infeng", False) for handler in root.handlers):
        handler = logging.Handler(logging.WARNING)
        handler.is_infeng = True  # type: ignore[attr-defined]
        handler.emit = _heard  # type: ignore[method-assign]
        root.addHandler(handler)
        logging.captureWarnings(True)


def _heard(record: logging.LogRecord) -> None:
    level = "error" if record.levelno >= logging.ERROR else "warning"
    try:
        text = record.getMessage()
    except Exception:  # from a message that does not fit its arguments
        text = str(record.msg)
    trace = {"exc_info": record.exc_info} if record.exc_info else {}
    getattr(get_logger(record.name), level)(text, **trace)
