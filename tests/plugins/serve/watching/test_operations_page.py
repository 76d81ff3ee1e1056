"""docs/operations.md lists the metrics that there are."""

from __future__ import annotations

import re
from pathlib import Path

from infeng_serve.watching.families import FAMILIES
from infeng_serve.watching.metrics import REASONS

PAGE = (Path(__file__).parents[4] / "docs/operations.md").read_text()


def test_the_table_of_metrics_is_the_code():
    rows = re.findall(
        r"^\| `(\w+)` \| (gauge|counter|histogram|summary|info) \| ([^|]*) \| (.*) \|$", PAGE, re.MULTILINE
    )
    listed = {name: (kind, tuple(re.findall(r"`(\w+)`", labels)), text) for name, kind, labels, text in rows}
    assert listed == {one.name: (one.kind, one.labels, one.help) for one in FAMILIES.values()}


def test_metrics_named_elsewhere_on_the_page_exist():
    said = set(re.findall(r"`(\w+_(?:total|seconds|perc|info|running|waiting|count))[`{]", PAGE))
    assert len(said) > 30 and {name.removesuffix("_count") for name in said} <= FAMILIES.keys()


def test_the_reasons_for_which_requests_end_are_listed():
    assert f"Reasons of `request_success_total`: {', '.join(f'`{reason}`' for reason in REASONS)};" in PAGE
