"""An observer: a line of JSON for each request and each change of an adapter. ``observers: {use: [lines]}``."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from infeng_core.api import AdapterChange, AdapterInfo, Completion, Request, hookimpl
from infeng_core.api.engines import Observer, StepReport


class Lines(Observer):
    """Appends to a file; several threads call at a time."""

    def __init__(self, path: Path) -> None:
        """Open ``path``."""
        self._file = path.open("a", encoding="utf-8")
        self._lock = threading.Lock()
        self._steps = self._rows = 0

    def step(self, report: StepReport) -> None:
        """Count a batch; steps come one after the other."""
        self._steps += 1
        self._rows += report.rows

    def ended(self, id: int, request: Request, outcome: Completion | Exception) -> None:
        """Write what became of a request."""
        if isinstance(outcome, Exception):
            self._write(request=id, error=str(outcome))
            return
        tokens = (outcome.usage.prompt_tokens, outcome.usage.completion_tokens)
        self._write(request=id, adapter=request.adapter, reason=outcome.finish_reason, tokens=tokens)

    def adapter(self, change: AdapterChange, info: AdapterInfo) -> None:
        """Write what happened to an adapter."""
        self._write(adapter=info.name, change=change, error=info.error)

    def close(self) -> None:
        """Write the sums."""
        self._write(steps=self._steps, rows=self._rows)
        self._file.close()

    def _write(self, **fields: object) -> None:
        line = json.dumps({name: value for name, value in fields.items() if value is not None})
        with self._lock:
            self._file.write(line + "\n")


@hookimpl
def infeng_observers(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the observer."""
    return {"lines": lambda config: Lines(Path(settings["path"]))}
