"""What other libraries log comes out as events of the engine."""

from __future__ import annotations

import json
import logging

from infeng_serve.observability.library_logs import capture_library_logs

from infeng_core import log


def test_what_other_libraries_log_comes_out_in_the_same_form(capsys):
    root = logging.getLogger()
    before = root.handlers[:]
    try:
        capture_library_logs()
        capture_library_logs()
        log.configure_from("info,json")
        logging.getLogger("library.of.others").warning("Invalid %s", "request")
        logging.getLogger("asyncio").error("never retrieved %s", "one")
        logging.getLogger("quiet").info("nothing")
        events = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
        assert [(e["module"], e["level"], e["event"]) for e in events] == [
            ("library.of.others", "warning", "Invalid request"),
            ("asyncio", "error", "never retrieved one"),
        ]
    finally:
        logging.captureWarnings(False)
        root.handlers[:] = before
        log.configure()
