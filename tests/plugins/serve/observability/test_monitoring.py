"""docs/examples/monitoring: every query of the dashboard and of the alerts means something that the server has."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from infeng_serve.observability.families import FAMILIES
from monitoring_parts import DASHBOARD, EXAMPLE, RULES, THRESHOLD, alert_queries, dashboard_queries


def promtool(*arguments: Any) -> str:
    """Run promtool and return what it says; it has to be content."""
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed: it is in Debian's package prometheus")
    done = subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_every_metric_in_rules_and_dashboard_exists():
    known = {"up"}
    for family in FAMILIES.values():
        name = family.name if family.name.startswith(("process_", "infeng_")) else f"infeng:{family.name}"
        endings = {"histogram": ("_bucket", "_sum", "_count"), "summary": ("_sum", "_count")}.get(family.kind, ("",))
        known |= {name + ending for ending in endings}
    for name, query in {**dashboard_queries(), **alert_queries()}.items():
        asked = set(re.findall(r"\b(?:infeng:\w+|infeng_\w+|process_\w+|up\b)", query))
        assert asked and asked <= known, f"{name}: {asked - known}"


def test_the_dashboard_shows_nearly_all_metrics():
    asked = set(re.findall(r"infeng:(\w+?)(?:_bucket|_sum|_count)?\b", " ".join(dashboard_queries().values())))
    told = {name for name in FAMILIES if not name.startswith(("process_", "infeng_"))}
    unseen = {"cache_config_info", "lora_requests_info", "lora_requests_total", "lora_prompt_tokens_total"}
    assert told - asked == unseen


def test_panels_do_not_overlap_and_have_numbers_of_their_own():
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) > 30
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(cells)) == len(cells) and max(x for x, _ in cells) == 23


def test_every_alert_ends_with_its_threshold_and_says_what_is_wrong():
    for rule in RULES:
        assert THRESHOLD.search(rule["expr"]), rule["alert"]
        assert rule["labels"]["severity"] in ("page", "ticket") and rule["annotations"]["summary"]


def test_promtool_takes_configuration_rules_and_queries(tmp_path: Path):
    promtool("check", "config", EXAMPLE / "prometheus.yml")
    assert f"{len(RULES)} rules found" in promtool("check", "rules", EXAMPLE / "alerts.yml")
    queries = dashboard_queries()
    rules = [{"record": f"query:{number}", "expr": query} for number, query in enumerate(queries.values())]
    path = tmp_path / "queries.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    assert f"{len(queries)} rules found" in promtool("check", "rules", path)


BAD = {
    "InfengDown": {"up": "0x60"},
    "InfengRestarts": {"process_start_time_seconds": "1x25 2x5 3x5 4x5 5x30"},
    "InfengErrors": {'infeng:request_success_total{finished_reason="error"}': "0+5x60"},
    "InfengFirstTokenSlow": {'infeng:time_to_first_token_seconds_bucket{le="1.0"}': "0x60"},
    "InfengTokensSlow": {'infeng:inter_token_latency_seconds_bucket{le="0.1"}': "0x60"},
    "InfengOverloaded": {'infeng:admission_rejections_total{reason="overloaded"}': "0+50x60"},
    "InfengQueueLong": {"infeng:predicted_wait_seconds": "60x60"},
    "InfengPreempts": {"infeng:num_preemptions_total": "0+60x60"},
    "InfengAdaptersThrash": {'infeng:lora_adapter_load_seconds_count{adapter_name="a"}': "0+90x60"},
    "InfengStrangers": {'infeng:admission_rejections_total{reason="unauthorized"}': "0+90x60"},
    "InfengFilesRunOut": {"process_open_fds": "900x60"},
}
"""What makes each alert fire, in place of the same of GOOD: a value a minute, as promtool writes series."""
GOOD = {
    "up": "1x60",
    "process_start_time_seconds": "1x60",
    "process_open_fds": "100x60",
    "process_max_fds": "1024x60",
    'infeng:request_success_total{finished_reason="error"}': "0x60",
    'infeng:request_success_total{finished_reason="stop"}': "0+100x60",
    'infeng:admission_rejections_total{reason="overloaded"}': "0+1x60",
    'infeng:admission_rejections_total{reason="unauthorized"}': "0x60",
    'infeng:time_to_first_token_seconds_bucket{le="1.0"}': "0+100x60",
    'infeng:time_to_first_token_seconds_bucket{le="20.0"}': "0+100x60",
    'infeng:time_to_first_token_seconds_bucket{le="+Inf"}': "0+100x60",
    'infeng:inter_token_latency_seconds_bucket{le="0.1"}': "0+100x60",
    'infeng:inter_token_latency_seconds_bucket{le="2.5"}': "0+100x60",
    'infeng:inter_token_latency_seconds_bucket{le="+Inf"}': "0+100x60",
    "infeng:predicted_wait_seconds": "0.2x60",
    "infeng:num_preemptions_total": "0x60",
    'infeng:lora_adapter_load_seconds_count{adapter_name="a"}': "0+1x60",
}


def series(of: dict[str, str]) -> list[dict[str, str]]:
    labels = 'job="infeng",instance="here"'
    return [
        {"series": f"{name[:-1]},{labels}}}" if name.endswith("}") else f"{name}{{{labels}}}", "values": values}
        for name, values in of.items()
    ]


def test_each_alert_fires_at_its_time_and_at_no_other(tmp_path: Path):
    assert BAD.keys() == {rule["alert"] for rule in RULES}
    firing = 'count by (alertname) (ALERTS{alertstate="firing"})'
    tests = [
        {
            "interval": "1m",
            "input_series": series({**GOOD, **BAD.get(bad, {})}),
            "promql_expr_test": [
                {
                    "expr": firing,
                    "eval_time": "50m",
                    "exp_samples": [{"labels": f'{{alertname="{bad}"}}', "value": 1}] if bad else [],
                }
            ],
        }
        for bad in ("", *BAD)
    ]
    path = tmp_path / "tests.yml"
    document = {"rule_files": [str(EXAMPLE / "alerts.yml")], "evaluation_interval": "1m", "tests": tests}
    path.write_text(yaml.safe_dump(document))
    assert "SUCCESS" in promtool("test", "rules", path)
