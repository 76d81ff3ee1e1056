"""The way from five PEFT folders to a server: the commands of its page run in order, in one shell."""

import json
import os
import re
import socket
import subprocess
import sysconfig
from pathlib import Path

import pytest

pytest.importorskip("infeng_serve", reason="the server wheel is not installed")
pytest.importorskip("infeng_demo", reason="the demo wheel is not installed")

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "five-adapters.md"
ENDS = "trap 'kill $(jobs -p) 2> /dev/null || true' EXIT"
"""No server is left where a command fails."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Return the folder that stands for /tmp, and what the page's commands print."""
    folder = tmp_path_factory.mktemp("page")
    commands = "\n".join(re.findall(r"```sh\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL))
    script = commands.replace("/tmp/", f"{folder}/").replace("8000", str(free_port()))
    path = f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "INFENG_CACHE": str(folder / "cache")}
    ran = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", f"{ENDS}\n{script}"],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    log = folder / "five.log"
    assert ran.returncode == 0, f"{ran.stdout[-2000:]}\n{ran.stderr}\n{log.read_text() if log.exists() else ''}"
    return folder, ran.stdout


@pytest.mark.slow
def test_the_base_and_each_of_five_adapters_answer_differently(done: tuple[Path, str]) -> None:
    answers = {}
    for file in done[0].glob("five.*.json"):
        body = json.loads(file.read_text())
        assert body["model"] == file.name.split(".")[1]
        answers[body["model"]] = body["choices"][0]["text"]
    assert sorted(answers) == ["code", "demo", "prose", "stage", "tests", "verse"]
    assert len({answers["demo"], answers["verse"], answers["code"]}) == 3


def test_the_models_that_the_server_names_are_the_base_and_five_adapters(done: tuple[Path, str]) -> None:
    [listed] = re.findall(r'^\{"object":"list".*$', done[1], re.MULTILINE)
    assert {"demo", "verse", "prose", "stage", "code", "tests"} <= {each["id"] for each in json.loads(listed)["data"]}


def test_a_key_without_the_adapter_is_refused_and_metrics_name_what_ran(done: tuple[Path, str]) -> None:
    assert "status 404" in done[1]
    assert [name for name, _ in re.findall(r"LoRA adapter '(\w+)' (\w+)", done[1])] == ["sixth"] * 3
    assert "infeng:generation_tokens_total" in done[1]
