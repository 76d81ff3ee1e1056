"""The examples of deployment: a unit that systemd takes, and a container file that does what the docs say."""

from __future__ import annotations

import argparse
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from infeng_serve.command import Serve

DEPLOY = Path(__file__).resolve().parents[2] / "docs" / "examples" / "deploy"
UNIT = (DEPLOY / "infeng.service").read_text()
IMAGE = (DEPLOY / "Containerfile").read_text()


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
