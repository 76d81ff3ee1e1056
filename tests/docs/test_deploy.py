"""The examples of deployment: a unit that systemd takes, and a container file that does what the docs say."""

from __future__ import annotations

import argparse
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from infeng_nightly.command import Dashboard, Nightly
from infeng_serve.command import Serve

DEPLOY = Path(__file__).resolve().parents[2] / "docs" / "examples" / "deploy"
UNIT = (DEPLOY / "infeng.service").read_text()
IMAGE = (DEPLOY / "Containerfile").read_text()


WORKFLOW = yaml.safe_load((DEPLOY / "nightly.yml").read_text())


def parsed(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(exit_on_error=False)
    Serve({}).configure(parser)
    return parser.parse_args(words)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not on this machine")
def test_systemd_takes_the_unit(tmp_path: Path):
    unit = tmp_path / "infeng.service"
    unit.write_text(re.sub(r"/opt/infeng/bin/infeng", "/bin/true", UNIT))
    found = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, timeout=60)
    assert "infeng.service" not in found.stderr, found.stderr


def test_the_unit_starts_a_valid_server_command():
    [line] = re.findall(r"^ExecStart=(.*)$", UNIT, re.MULTILINE)
    program, verb, *words = shlex.split(line)
    given = parsed(words)
    assert (Path(program).name, verb) == ("infeng", "serve")
    assert given.manifest and given.journal


def test_the_unit_stops_later_than_the_longest_drain():
    [seconds] = re.findall(r"^TimeoutStopSec=(\d+)$", UNIT, re.MULTILINE)
    settings = (DEPLOY.parents[2] / "plugins" / "serve" / "infeng_serve" / "plugin.yaml").read_text()
    [drain] = re.findall(r"drain_timeout: .*default: (\d+)", settings)
    assert int(seconds) > int(drain) + 2


def test_the_image_uses_known_steps_and_an_existing_target():
    steps = [line.split(maxsplit=1) for line in IMAGE.splitlines() if line and not line.startswith("#")]
    known = {"FROM", "RUN", "COPY", "USER", "ENV", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK", "ENTRYPOINT"}
    assert {name for name, _ in steps} <= known
    assert "make -C /src wheels" in IMAGE
    makefile = (DEPLOY.parents[2] / "Makefile").read_text()
    assert re.search(r"^wheels:", makefile, re.MULTILINE)
    [run] = re.findall(r"infeng (/model --host .*)$", IMAGE, re.MULTILINE)
    assert parsed(run.rstrip("`").split()).host == "0.0.0.0"


def test_the_workflow_runs_every_night_and_keeps_its_history_even_after_a_regression():
    [entry] = WORKFLOW[True]["schedule"]  # YAML 1.1 reads the key "on" as true
    minute, hour, *rest = entry["cron"].split()
    assert 0 <= int(minute) < 60 and 0 <= int(hour) < 24 and rest == ["*", "*", "*"]
    [job] = WORKFLOW["jobs"].values()
    steps = {step.get("name"): step for step in job["steps"]}
    assert steps["Keep the history"]["if"] == steps["Draw"]["if"] == "always()"
    assert steps["Keep the history"]["with"]["path"] == "history"
    for step in job["steps"]:
        if "run" in step:
            done = subprocess.run(["bash", "-n"], input=step["run"], capture_output=True, text=True, timeout=60)
            assert done.returncode == 0, done.stderr


def test_the_workflow_measures_and_draws_by_valid_commands():
    [job] = WORKFLOW["jobs"].values()
    runs = "\n".join(step.get("run", "") for step in job["steps"])
    calls = [shlex.split(line) for line in runs.splitlines() if line.startswith("nights/bin/infeng ")]
    commands = {"nightly": Nightly(), "dashboard": Dashboard()}
    given = {}
    for _, verb, *words in calls:
        parser = argparse.ArgumentParser(exit_on_error=False)
        commands[verb].configure(parser)
        given[verb] = parser.parse_args(words).history
    assert given == dict.fromkeys(commands, "history/nights.jsonl")
