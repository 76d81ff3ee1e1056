"""What a server has otherwise than a program: bounded waits, and tenants that share fairly."""

from __future__ import annotations

from pathlib import Path

import pytest
from infeng_demo import model_dir
from infeng_serve.auth import Keys
from infeng_serve.defaults import MAX_WAIT_MS, NICE, as_served
from infeng_serve.model import load
from serve_parts import settings_of

from infeng_core.api import EngineConfig, Plugins, load_config

ALONE, SHARED = Keys(["one-key"]), Keys(["one-key", "another-key"])


def served(config: EngineConfig, keys: Keys) -> EngineConfig:
    return as_served(config, keys, Plugins.discover(config))


def test_calls_queue_for_a_bounded_time_by_default():
    config = served(load_config(), Keys())
    assert config.scheduler.max_wait_ms == MAX_WAIT_MS
    assert config.provenance["scheduler.max_wait_ms"] == "infeng serve"
    for given in (0, 300):
        config = load_config(overrides={"scheduler.max_wait_ms": given})
        assert served(config, Keys()).scheduler.max_wait_ms == given


def test_workers_stand_behind_the_thread_of_http_by_default():
    config = served(load_config(), Keys())
    assert (config.threads.nice, config.provenance["threads.nice"]) == (NICE, "infeng serve")
    assert served(load_config(overrides={"threads.nice": 3}), Keys()).threads.nice == 3


def test_tenants_share_fairly_by_default(tmp_path: Path):
    pytest.importorskip("infeng_fair", reason="the fair wheel is not installed")
    file = tmp_path / "keys"
    file.write_text("one-key one\n")
    for keys, policy in ((Keys(), "fcfs"), (ALONE, "fcfs"), (SHARED, "fair"), (Keys(file=file), "fair")):
        assert served(load_config(), keys).scheduler.use == policy
    assert served(load_config(overrides={"scheduler.use": "fcfs"}), SHARED).scheduler.use == "fcfs"


def test_without_the_wheel_tenants_are_served_first_come_and_a_warning_names_it(capsys: pytest.CaptureFixture[str]):
    config = load_config(overrides={"plugins.disable": "fair"})
    assert served(config, SHARED).scheduler.use == "fcfs"
    assert "install the wheel infeng-fair" in capsys.readouterr().err


def test_plugins_are_looked_for_once(monkeypatch: pytest.MonkeyPatch):
    config = load_config(overrides={"model.path": str(model_dir()), "threads.count": 1, "kv_cache.memory": "8MB"})
    plugins = Plugins.discover(config)
    monkeypatch.setattr(Plugins, "discover", lambda *_: pytest.fail("they are known"))
    model = load(as_served(config, SHARED, plugins), settings_of(), plugins=plugins)
    assert model.engine.plugins is plugins
    model.engine.close()
