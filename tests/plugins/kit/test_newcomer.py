"""From nothing to a part of one's own in the engine, by the commands of a page that a newcomer reads."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import venv
from pathlib import Path

import numpy as np
import pytest
import tiny_model
from kit_parts import MAIN, WORDS, begun, environ
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

PAGE = Path(__file__).parents[3] / "docs" / "adding-a-kernel.md"


@pytest.mark.slow
def test_the_page_s_commands_lead_to_a_kernel_that_the_engine_uses(tmp_path: Path) -> None:
    [block] = re.findall(r"```\n(infeng plugins new .*?)```", PAGE.read_text(), re.DOTALL)
    commands = [shlex.split(line.partition("   #")[0]) for line in block.splitlines()]
    assert [words[:3] for words in commands] == [
        ["infeng", "plugins", "new"],
        ["infeng", "plugins", "check"],
        ["pip", "install", "--no-build-isolation"],
        ["infeng", "plugins", "why"],
        ["infeng", "plugins", "bench"],
    ]
    python = newcomer(tmp_path / "environment")
    said = [run(words, python, tmp_path) for words in commands]
    assert "\ngreen: " in said[1]
    assert re.search(r"^  > +my-norm/rmsnorm_c +chosen", said[3], re.MULTILINE)
    assert re.search(r"^kernel rmsnorm_c +rmsnorm, rows 1, .* us ", said[4], re.MULTILINE)
    listed = json.loads(run(["infeng", "plugins", "list", "--json"], python, tmp_path))
    assert {"my-norm": "ready"}.items() <= {item["name"]: item["state"] for item in listed}.items()


def clipped(tensors: dict[str, NDArray[np.float32]]) -> dict[str, NDArray[np.float32]]:
    """Add what the family of the kind `op` reads besides a Llama's tensors."""
    shape = tiny_model.Shape()
    gains = [f"model.layers.{layer}.mlp.gain.weight" for layer in range(shape.layers)]
    return tensors | {name: np.full(shape.intermediate, 0.9, np.float32) for name in gains}


def renamed(tensors: dict[str, NDArray[np.float32]]) -> dict[str, NDArray[np.float32]]:
    """Give tensors the names that the kind `family` reads."""
    return {re.sub(r"^model\.", "transformer.", name): values for name, values in tensors.items()}


FAMILIES = {"op": ("clipx", "ClipxForCausalLM", clipped), "family": ("renamedx", "RenamedxForCausalLM", renamed)}


def checkpoint(kind: str, folder: Path) -> Path:
    """Write a model that a new project of a kind can run."""
    model = tiny_model.write(folder)
    if kind in FAMILIES:
        family, architecture, change = FAMILIES[kind]
        config = json.loads((model / "config.json").read_text())
        config |= {"model_type": family, "architectures": [architecture]}
        (model / "config.json").write_text(json.dumps(config))
        save_file(change(load_file(model / "model.safetensors")), model / "model.safetensors", {"format": "pt"})
    return model


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["format", "op", "family"])
def test_the_commands_of_a_new_project_s_page_lead_to_a_model_that_runs(kind: str, tmp_path: Path) -> None:
    project, model = begun(kind, tmp_path / "project"), checkpoint(kind, tmp_path / "model")
    [block] = re.findall(r"```\n(.*?)```", (project / "README.md").read_text(), re.DOTALL)
    commands = [shlex.split(line.partition("   #")[0].replace("MODEL", str(model))) for line in block.splitlines()]
    assert [words[:2] for words in commands[:2]] == [["infeng", "plugins"], ["pip", "install"]]
    python = newcomer(tmp_path / "environment")
    said = [run(words, python, project) for words in commands]
    assert "\ngreen: " in said[0] and said[2]
    answer = ["infeng", "run", str(model), "-p", "the", "-n", "4", "--temperature", "0"]
    if kind == "format":
        answer += ["--format", f"{WORDS[kind]}-g32"]
    assert run(answer, python, tmp_path)
    disabled = ["infeng", "run", *answer[2:], "--set", f"plugins.disable={WORDS[kind]}"]
    assert WORDS[kind] in run(disabled, python, tmp_path, fails=True).lower(), "the plugin is what runs it"


def newcomer(place: Path) -> Path:
    """Make an environment with this installation, and with pip; return its Python."""
    venv.create(place, with_pip=False, symlinks=True)
    [site] = place.glob("lib/python*/site-packages")
    (site / "installation.pth").write_text("\n".join(path for path in sys.path if path) + "\n")
    return place / "bin" / "python"


def run(words: list[str], python: Path, folder: Path, *, fails: bool = False) -> str:
    """Run one command of a page; return what it says, with its errors where it has to fail."""
    program = ["-m", "pip", "--disable-pip-version-check"] if words[0] == "pip" else ["-c", MAIN]
    tools = os.pathsep.join([str(Path(sys.executable).parent), environ()["PATH"]])
    command = [str(python), "-P", *program, *words[1:]]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=folder, check=False,
        env=environ(PATH=tools, INFENG_CACHE=str(folder / "cache")),
    )  # fmt: skip
    assert done.returncode in ((1, 2) if fails else (0,)), done.stdout + done.stderr
    return done.stdout + (done.stderr if fails else "")
