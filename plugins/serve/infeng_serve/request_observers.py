"""The observers that the settings ask for: metrics always, an access log and traces optionally."""

from __future__ import annotations

from infeng_core.api.servers import StartupTimes, is_json
from infeng_serve.model import Model
from infeng_serve.observability.accesslog import AccessLog, Format
from infeng_serve.observability.metrics import Metrics
from infeng_serve.observability.tracing import Tracing
from infeng_serve.observers import Observer
from infeng_serve.settings import Settings


def request_observers(model: Model, settings: Settings, startup: StartupTimes | None = None) -> list[Observer]:
    """Return the observers; raises UsageError for an invalid endpoint of traces.

    startup: durations of the phases of the start.
    """
    found: list[Observer] = [Metrics(model.engine, model.name, prefix=settings.metrics_prefix, startup=startup)]
    if settings.access_log != "off":
        format: Format = "json" if is_json() else settings.access_log  # one format for all of standard error
        found.append(AccessLog(format=format, sample=settings.access_log_sample))
    if settings.otlp_endpoint:
        found.append(Tracing(settings.otlp_endpoint, model.engine))
    return found
