"""The queries of docs/examples/monitoring."""

from __future__ import annotations

import json
import re
from pathlib import Path

import yaml

EXAMPLE = Path(__file__).parents[1] / "docs/examples/monitoring"
DASHBOARD = json.loads((EXAMPLE / "dashboard.json").read_text())
RULES = yaml.safe_load((EXAMPLE / "alerts.yml").read_text())["groups"][0]["rules"]
THRESHOLD = re.compile(r"\s(?:==|>|<)\s[\d.]+\s*$")


def dashboard_queries() -> dict[str, str]:
    """Return the queries by what they are called, with variables as Grafana would fill them in."""
    found = {
        f"{panel['title']} {panel['id']} {target['refId']}": target["expr"]
        for panel in DASHBOARD["panels"]
        for target in panel.get("targets", ())
    }
    found |= {one["name"]: one["expr"] for one in DASHBOARD["annotations"]["list"]}
    return {name: expr.replace("$__rate_interval", "1m").replace("$model", ".*") for name, expr in found.items()}


def alert_queries() -> dict[str, str]:
    """Return what the alerts compare with their thresholds."""
    return {rule["alert"]: THRESHOLD.sub("", rule["expr"]) for rule in RULES}
