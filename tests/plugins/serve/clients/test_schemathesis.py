"""schemathesis reads the served OpenAPI document, makes calls of it, right and wrong, and finds nothing to object to.

All of its checks: no 5xx, statuses, content types, headers and bodies (events of streams too) as the document says,
wrong calls refused and right ones taken, keys asked for, methods refused that are not there.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("infeng_serve", reason="the server wheel is not installed")
demo = pytest.importorskip("infeng_demo", reason="the demo wheel is not installed")

HERE = Path(__file__).parent
REQUIREMENT = "schemathesis>=4.32,<5"
KEY = {"authorization": "Bearer secret"}


@pytest.mark.parametrize(
    ("examples", "seed"),
    [
        pytest.param(10, None, marks=pytest.mark.slow, id="few"),
        pytest.param(200, 1, marks=pytest.mark.nightly, id="many"),
        pytest.param(200, 2, marks=pytest.mark.nightly, id="others"),
    ],
)
def test_calls_generated_from_the_document_are_answered_by_its_schemas(
    serve: Any, python_with: Callable[..., Path], tmp_path: Path, examples: int, seed: int | None
):
    python = python_with("schemathesis", REQUIREMENT)
    options = ["--port", 0, "--api-key", "secret", "--request-timeout", "0.05", "--journal", tmp_path / "journal"]
    options += ["--set", "dialects.rank=cosine"]
    report = tmp_path / "report.json"
    fixed = ["--generation-deterministic"] if seed is None else ["--seed", seed, "--generation-database", "none"]
    with serve(*options, "--lora", f"bard={demo.adapter_dir('shakespeare')}") as (url, process):
        body = {"prompt": "a", "stream": True, "max_tokens": 4}
        httpx.post(f"{url}/v1/completions", json=body, headers={**KEY, "x-request-id": "known"}).raise_for_status()
        command = [
            python, "-m", "schemathesis.cli", "--config-file", HERE / "schemathesis.toml", "run", f"{url}/openapi.json",
            "-H", "Authorization: Bearer secret", "--checks", "all", "--phases", "coverage,fuzzing,stateful",
            "--max-examples", examples, *fixed, "--continue-on-failure", "--no-color", "--report", "json",
            "--report-json-path", report,
        ]  # fmt: skip
        done = subprocess.run(list(map(str, command)), cwd=tmp_path, capture_output=True, text=True, timeout=1800)
        assert done.returncode == 0, done.stdout[-20000:] + done.stderr[-2000:]
        assert process.poll() is None
        assert httpx.get(f"{url}/load", headers=KEY).json()["running"] == 0
    told = json.loads(report.read_text())
    assert told["operations"]["tested"] == told["operations"]["total"] > 15
    assert told["test_cases"]["generated"] > 2000
