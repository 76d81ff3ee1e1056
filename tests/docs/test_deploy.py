"""The examples of deployment: a unit that systemd takes, images and services that do what the docs say."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from infeng_demo import model_dir
from infeng_nightly.command import Dashboard, Nightly
from infeng_serve.command import Serve
from serve_parts import ask, until

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


def test_the_unit_waits_for_a_server_that_says_when_it_is_ready():
    assert re.search(r"^Type=notify$", UNIT, re.MULTILINE) and re.search(r"^WatchdogSec=\d+$", UNIT, re.MULTILINE)
    assert "TimeoutStartSec=infinity" in UNIT  # a first start converts the model


def test_the_services_of_compose_find_their_files_and_start_a_valid_server():
    folder = DEPLOY / "compose"
    services = yaml.safe_load((folder / "compose.yaml").read_text())["services"]
    for service in services.values():
        for volume in service["volumes"]:
            place = volume.split(":")[0]
            assert not place.startswith(".") or (folder / place).resolve().is_file(), volume
    verb, *words = services["infeng"]["command"]
    assert verb == "serve" and parsed(words).host == "0.0.0.0"
    scraped = yaml.safe_load((folder / "prometheus.yml").read_text())["scrape_configs"][0]["static_configs"]
    assert scraped == [{"targets": ["infeng:8000"]}]
    sources = yaml.safe_load((folder / "datasource.yml").read_text())["datasources"]
    assert [source["url"] for source in sources] == ["http://prometheus:9090"]


SCRIPT = DEPLOY / "oci-image"


def test_the_image_of_the_script_starts_a_valid_server_and_its_shell_is_plain():
    assert subprocess.run(["sh", "-n", SCRIPT]).returncode == 0
    text = SCRIPT.read_text().replace("\\\n", " ")
    verb, *words = re.findall(r"--config\.cmd (\S+)", text)
    assert verb == "serve" and parsed(words).model == "/model" and parsed(words).host == "0.0.0.0"


@pytest.mark.nightly
@pytest.mark.skipif(
    os.geteuid() != 0 or not all(map(shutil.which, ("umoci", "skopeo", "mmdebstrap"))),
    reason="needs root, umoci, skopeo and mmdebstrap",
)
def test_an_image_is_built_without_a_daemon_is_a_valid_layout_and_serves(tmp_path: Path):
    """Nightly, because it fetches a small Debian: three minutes."""
    root = DEPLOY.parents[2]
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    for wheel in root.glob("build/wheels/*/*.whl"):
        shutil.copy(wheel, wheels)
    image = tmp_path / "image"
    command = ["sh", SCRIPT, image, wheels, root / "build" / "image-wheels"]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHON": sys.executable})
    assert done.returncode == 0, done.stderr[-2000:]
    shown = subprocess.run(["skopeo", "inspect", "--config", f"oci:{image}:infeng"], capture_output=True, check=True)
    config = json.loads(shown.stdout)["config"]
    assert (config["User"], config["StopSignal"]) == ("infeng", "SIGTERM")
    # a copy reads every blob and compares it with its digest
    subprocess.run(
        ["skopeo", "copy", f"oci:{image}:infeng", f"dir:{tmp_path / 'copy'}"], check=True, capture_output=True
    )
    subprocess.run(
        ["umoci", "unpack", "--image", f"{image}:infeng", tmp_path / "bundle"], check=True, capture_output=True
    )
    inside = tmp_path / "bundle" / "rootfs"
    shutil.copytree(model_dir(), inside / "model", dirs_exist_ok=True)
    (inside / "dev").mkdir(exist_ok=True)
    entry = [*config["Entrypoint"], *config["Cmd"], "--port", "0", "--ready-file", "/var/cache/infeng/url", "-t", "1"]
    pinned = 'mount -t proc proc proc && mount --bind /dev dev && exec chroot --userspec=10001:10001 . env -i "$@"'
    words = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-ec", pinned, "sh"]
    server = subprocess.Popen([*words, *config["Env"], *entry], cwd=inside, stderr=subprocess.PIPE)
    try:
        ready = inside / "var/cache/infeng/url"
        assert until(lambda: ready.exists() or server.poll() is not None, 120)
        assert server.poll() is None, server.stderr and server.stderr.read()
        port = int(ready.read_text().strip().rpartition(":")[2])
        answer = ask(("127.0.0.1", port), "/v1/completions", {"prompt": "The king", "max_tokens": 4})
        assert answer.status == 200 and answer.json["usage"]["completion_tokens"] == 4
    finally:
        server.kill()
        server.wait()
