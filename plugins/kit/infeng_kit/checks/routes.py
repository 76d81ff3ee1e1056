"""Routes of a server: a server over a tiny model starts with them and answers the calls that the project gives."""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infeng_kit.checks.commands import MAIN
from infeng_kit.report import failed, ok, skipped

if TYPE_CHECKING:
    from infeng_kit.child import Teller
    from infeng_kit.plan import Plan

START_S = 170.0
CALL_S = 60.0


def check(plan: Plan, _: str, teller: Teller) -> None:
    """Report whether the server starts, answers the calls of the project, and /health after them."""
    calls = plan.options.get("routes", {})
    teller.begin("a server with the routes")
    with _server(plan) as url:
        if url is None:
            teller.line(failed("routes", f"the server has not started within {START_S:g} s", _SERVE))
            return
        if not calls:
            remedy = '[tool.infeng-kit.routes] "/path" = {method = "GET", status = 200} in pyproject.toml'
            teller.line(skipped("routes", "no route is called", remedy))
        for path, call in calls.items():
            teller.begin(f"a call of {path}")
            status, body = _ask(url + path, call)
            wanted = call.get("status", 200)
            if status == wanted:
                teller.line(ok(f"route {path}", f"answers {status}: {body[:100]}"))
            else:
                why = f"answers {status} instead of {wanted}: {body[:200]}"
                teller.line(failed(f"route {path}", why, "look at its handler, and at the call in pyproject.toml"))
        status, _body = _ask(f"{url}/health", {})
        if status != 200:
            teller.line(
                failed("routes", f"after the calls /health answers {status}", "let a handler end its own call only")
            )


@contextmanager
def _server(plan: Plan) -> Iterator[str | None]:
    """Start `infeng serve` on a free port; yield its URL, or None if it does not start."""
    ready = Path(plan.folder) / "ready"
    log = Path(plan.folder) / "server.log"
    words = ["serve", str(plan.tiny()), "--port", "0", "--ready-file", str(ready), "-t", "1"]
    with log.open("wb") as file:
        child = subprocess.Popen(
            [sys.executable, "-P", "-c", MAIN, *words], stdin=subprocess.DEVNULL, stdout=file, stderr=file
        )
        try:
            deadline = time.monotonic() + START_S
            while not ready.exists() and child.poll() is None and time.monotonic() < deadline:
                time.sleep(0.1)
            yield ready.read_text().strip() if ready.exists() else None
        finally:
            child.kill()
            child.wait()


_SERVE = "run it: infeng serve MODEL; routes need the wheel infeng-serve"


def _ask(url: str, call: Mapping[str, Any]) -> tuple[int, str]:
    """Return the status and the body of one call; status 0 if there is none."""
    body = call.get("body")
    headers = {"content-type": "application/json"} if body is not None else {}
    data = str(body).encode() if body is not None else None
    asked = urllib.request.Request(url, data, headers, method=call.get("method", "GET"))
    try:
        with urllib.request.urlopen(asked, timeout=CALL_S) as answer:
            return answer.status, answer.read().decode("utf-8", errors="replace")
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode("utf-8", errors="replace")
    except OSError as error:
        return 0, str(error)
