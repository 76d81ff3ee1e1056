"""The weight format of docs/examples/format: a library that no Python comes with is converted to, loaded and run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_model
from infeng_abi import CFLAGS, include_dir

from infeng_core import cli
from infeng_core.engine import Engine
from infeng_core.errors import InfengError, PluginError
from infeng_core.formats.quant import BUILTIN
from infeng_core.plug.manager import Plugins
from infeng_core.requests.request import SamplingParams
from infeng_core.settings.manifest import load_config

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "format"
FORMAT, OWN = "int5-g32", "int5/linear_int5g32"
GREEDY = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True)
PROMPT = [[5, 6, 7, 8, 9]]
Build = Callable[..., Path]


@pytest.fixture(autouse=True)
def own(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Nothing of the user's settings, and a cache of these tests."""
    for name in [name for name in os.environ if name.startswith("INFENG_") and name != "INFENG_TEST_DATA"]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("INFENG_CACHE", str(tmp_path_factory.getbasetemp() / "format-cache"))


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Return what compiles the example, after an edit of its source, and gives its plugin.yaml."""

    def compile_example(*edit: str) -> Path:
        folder = tmp_path_factory.mktemp("int5")
        source = (EXAMPLE / "int5.c").read_text()
        assert not edit or edit[0] in source
        (folder / "int5.c").write_text(source.replace(*edit) if edit else source)
        flags = ["-O2", "-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", f"-I{include_dir()}", *CFLAGS]
        command = ["cc", "-shared", "-fPIC", *flags, str(folder / "int5.c"), "-lm"]
        subprocess.run([*command, "-o", str(folder / "libinfeng_int5.so")], check=True)
        return Path(shutil.copy(EXAMPLE / "infeng_int5" / "plugin.yaml", folder))

    return compile_example


@pytest.fixture(scope="module")
def plugin(build: Build) -> Path:
    return build()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model.write(tmp_path_factory.mktemp("tiny") / "model", tiny_model.Shape(bias=True))


def engine(model: Path, *plugins: Path, format: str | None = FORMAT, **settings: Any) -> Engine:
    formats = {} if format is None else {"model.format": format, "model.formats": {}}
    overrides = {"plugins.paths": [str(path) for path in plugins], "kernels.order": "int5,*,reference", **formats}
    return Engine(model, threads=2, overrides=overrides | {key.replace("__", "."): v for key, v in settings.items()})


def served_by(made: Engine, op: str, weight: str = FORMAT) -> set[str]:
    assert made.selector is not None
    decisions = [d for d in made.selector.decisions if d.problem.op == op and d.problem.weight == weight]
    return {f"{d.chosen.library}/{d.chosen.kernel}" for d in decisions if d.chosen is not None}


def logprobs(made: Engine) -> tuple[tuple[int, ...], bytes]:
    answer = made.generate(PROMPT, GREEDY)[0]
    scores = made.score(PROMPT[0], list(answer.token_ids))
    return answer.token_ids, np.array([one.logprob for one in scores]).tobytes()


def test_its_own_kernel_and_the_reference_s_fallback_run_it_with_equal_bytes(tiny: Path, plugin: Path) -> None:
    with engine(tiny, plugin) as made:
        own = logprobs(made)
        assert served_by(made, "linear") == {OWN}
        assert served_by(made, "embed") == {"reference/embed_foreign"}
    with engine(tiny, plugin, kernels__disable=[OWN]) as made:
        assert logprobs(made) == own
        assert served_by(made, "linear") == {"reference/linear_foreign"}


def test_converted_it_is_loaded_and_runs_like_what_is_packed_on_the_fly(
    tiny: Path, plugin: Path, tmp_path: Path
) -> None:
    native = tmp_path / "native"
    paths, embed = f"plugins.paths={plugin}", f"model.formats.embed={FORMAT}"
    assert cli.main(["convert", str(tiny), str(native), "--format", FORMAT, "--set", paths, "--set", embed]) == 0
    assert f"format: {FORMAT}" in (native / "manifest.yaml").read_text()
    with engine(tiny, plugin) as made, engine(native, plugin, format=None) as again:
        assert logprobs(again) == logprobs(made)
        assert served_by(again, "linear") == {OWN}
    with pytest.raises(PluginError, match=f"quant format {FORMAT}: no plugin provides it"):
        engine(native, format=None)
