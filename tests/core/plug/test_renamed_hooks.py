"""A plugin that spells a hook and its kind as an earlier version had them still works, with a note."""

from __future__ import annotations

from pathlib import Path

from infeng_core.plug.assembly import load_config
from infeng_core.plug.manager import Plugins

YAML = """infeng_plugin: 1
name: earlier
version: 1
python: earlier_hooks
provides:
  schedulers: [earlier]
"""
HOOKS = """
from infeng_core.api import hookimpl
from infeng_core.scheduling.fcfs import FirstCome

@hookimpl
def infeng_schedulers():
    return {"earlier": FirstCome}
"""


def test_a_policy_under_the_older_names_is_used_and_the_new_name_is_noted(tmp_path: Path, capsys):
    (tmp_path / "plugin.yaml").write_text(YAML)
    (tmp_path / "earlier_hooks.py").write_text(HOOKS)
    config = load_config(overrides={"plugins.paths": [str(tmp_path / "plugin.yaml")]})
    plugins = Plugins.discover(config)
    assert "earlier" in plugins.names("policies")
    assert callable(plugins.policy("earlier"))
    assert plugins.plugin("earlier").usable
    said = capsys.readouterr().err
    assert "provides.schedulers" in said and "policies" in said
