"""What a server has otherwise than a program: bounded waits, and tenants that share fairly."""

from __future__ import annotations

from pathlib import Path

import pytest
from infeng_serve.auth import Keys
from infeng_serve.defaults import MAX_WAIT_MS, as_served

from infeng_core.api import load_config

ALONE, SHARED = Keys(["one-key"]), Keys(["one-key", "another-key"])


def test_calls_wait_for_others_for_a_bounded_time_where_nobody_says_otherwise():
    config = as_served(load_config(), Keys())
    assert config.scheduler.max_wait_ms == MAX_WAIT_MS
    assert config.provenance["scheduler.max_wait_ms"] == "infeng serve"
    for given in (0, 300):
        config = load_config(overrides={"scheduler.max_wait_ms": given})
        assert as_served(config, Keys()).scheduler.max_wait_ms == given


def test_tenants_share_fairly_where_nobody_says_otherwise(tmp_path: Path):
    pytest.importorskip("infeng_fair", reason="the fair wheel is not installed")
    file = tmp_path / "keys"
    file.write_text("one-key one\n")
    for keys, policy in ((Keys(), "fcfs"), (ALONE, "fcfs"), (SHARED, "fair"), (Keys(file=file), "fair")):
        assert as_served(load_config(), keys).scheduler.use == policy
    assert as_served(load_config(overrides={"scheduler.use": "fcfs"}), SHARED).scheduler.use == "fcfs"


def test_without_the_wheel_tenants_are_served_first_come_and_a_warning_names_it(capsys: pytest.CaptureFixture[str]):
    config = load_config(overrides={"plugins.disable": "fair"})
    assert as_served(config, SHARED).scheduler.use == "fcfs"
    assert "install the wheel infeng-fair" in capsys.readouterr().err
