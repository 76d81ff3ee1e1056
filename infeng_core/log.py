"""Logs go to stderr through structlog, as text for people or JSON for machines.

``INFENG_LOG`` chooses: ``debug``, ``info``, ``warning`` (default), ``error``, and/or ``json``, separated by commas.
"""

from __future__ import annotations

import os
import sys
from collections.abc import MutableMapping
from typing import Any, TextIO

from infeng_core.errors import UsageError, printable

LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}  # as in ``logging``

_warned: set[str] = set()


class _Settings:
    """The settings that loggers read at each event, so that existing loggers follow a change."""

    def __init__(self) -> None:
        self.configured = False
        self.json = False
        self.level = LEVELS["warning"]


_settings = _Settings()


def configure(json: bool = False, level: str = "warning") -> None:
    """Set format and lowest level of every logger of the engine, including existing ones."""
    if level not in LEVELS:
        raise UsageError(f"log level {level!r}", "unknown", f"choose one of {', '.join(LEVELS)}")
    _settings.configured, _settings.json, _settings.level = True, json, LEVELS[level]


class Logger:
    """The logger of a module.

    structlog is imported at the first event that is printed: its import takes as long as the rest of the engine's,
    and most commands print none.
    """

    def __init__(self, module: str) -> None:
        """module: the name of the module."""
        self._module = module
        self._made: Any = None

    def debug(self, event: str, **pairs: Any) -> None:
        """Log details for developers of the engine."""
        self._log("debug", event, pairs)

    def info(self, event: str, **pairs: Any) -> None:
        """Log normal progress."""
        self._log("info", event, pairs)

    def warning(self, event: str, **pairs: Any) -> None:
        """Log an unexpected condition."""
        self._log("warning", event, pairs)

    def error(self, event: str, **pairs: Any) -> None:
        """Log a failure."""
        self._log("error", event, pairs)

    def exception(self, event: str, **pairs: Any) -> None:
        """Log a failure with the traceback of the exception that is being handled."""
        self._log("error", event, {"exc_info": True, **pairs})

    def _log(self, level: str, event: str, pairs: dict[str, Any]) -> None:
        if LEVELS[level] >= _settings.level:
            if self._made is None:
                self._made = _structlog(self._module)
            getattr(self._made, level)(event, **pairs)


def get_logger(name: str) -> Logger:
    """Return the logger of a module; the first call reads ``INFENG_LOG``.

    structlog's own configuration, which belongs to the surrounding application, is neither read nor changed.
    """
    _configured()
    return Logger(name)


def is_json() -> bool:
    """Return whether events are printed as JSON: then a command writes nothing else to standard error."""
    _configured()
    return _settings.json


def announce(text: str, level: str = "info") -> None:
    """Print at any level: a line of text, or as JSON an event of ``level``."""
    if is_json():
        getattr(_structlog("infeng_core.cli"), level)(text)
    else:
        print(printable(text), file=sys.stderr)


def _configured() -> None:
    if not _settings.configured:
        configure_from(os.environ.get("INFENG_LOG", ""))


def warn_once(logger: Logger, event: str, **pairs: object) -> None:
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
    """stderr at the time of each line, so that redirecting it works."""

    def write(self, text: str) -> int:
        return _stream().write(text)

    def flush(self) -> None:
        _stream().flush()


def _stream() -> TextIO:
    return sys.stderr if sys.stderr is not None else sys.__stderr__ or open(os.devnull, "w")  # noqa: PTH123


def _structlog(module: str) -> Any:
    import structlog

    return structlog.wrap_logger(
        structlog.PrintLogger(_Stderr()),  # type: ignore[arg-type]  # print() needs write and flush only
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS["debug"]),
        module=module,
    )


def _render(logger: Any, method: str, event: MutableMapping[str, Any]) -> str:
    """Return JSON, or one line ``infeng: warning: text key=value``, as command line tools print."""
    if _settings.json:
        import structlog

        return str(structlog.processors.JSONRenderer()(logger, method, event))
    level, text = event.pop("level"), event.pop("event")
    trace = event.pop("exception", None)
    words = [f"{key}={_word(value)}" for key, value in event.items() if key not in ("module", "timestamp")]
    lines = [f"infeng: {level}: {' '.join((printable(str(text)), *words))}"]
    lines += [f"  {printable(line)}" for line in trace.splitlines()] if trace else []  # only these are indented
    return "\n".join(lines)


def _word(value: object) -> str:
    return printable(repr(value) if isinstance(value, str) and " " in value else str(value))
