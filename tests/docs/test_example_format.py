"""The weight format of docs/examples/format: a library that no Python comes with is converted to, loaded and run."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import caches
import numpy as np
import pytest
import tiny_model
from infeng_abi import CFLAGS, include_dir
from numpy.typing import NDArray

from infeng_core import cli
from infeng_core.engine import Engine
from infeng_core.errors import InfengError, KernelError, ModelError, PluginError
from infeng_core.formats.lookup import format_lookup
from infeng_core.formats.quant import BUILTIN
from infeng_core.kernels import libraries
from infeng_core.plug.assembly import load_config
from infeng_core.plug.manager import Plugins
from infeng_core.requests.request import SamplingParams

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
    monkeypatch.setenv("INFENG_CACHE", str(caches.shared(tmp_path_factory)))


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
    overrides = {
        "plugins.paths": [str(path) for path in plugins],
        "kernels.order": "int5,*,reference" if plugins else "*,reference",
    }
    return Engine(
        model, threads=2, overrides=overrides | formats | {key.replace("__", "."): v for key, v in settings.items()}
    )


def served_by(made: Engine, op: str) -> set[str]:
    return {f"{bound.library}/{bound.kernel}" for bound in made.bound() if bound.op == op}


def scores(made: Engine, tokens: tuple[int, ...]) -> NDArray[np.float64]:
    return np.array([one.logprob for one in made.score(PROMPT[0], tokens)])


def logprobs(made: Engine) -> tuple[tuple[int, ...], bytes]:
    answer = made.generate(PROMPT, GREEDY)[0]
    return answer.token_ids, scores(made, answer.token_ids).tobytes()


@pytest.mark.slow
def test_its_kernel_and_the_reference_give_equal_bytes(tiny: Path, plugin: Path) -> None:
    with engine(tiny, plugin) as made:
        own = logprobs(made)
        assert served_by(made, "linear") == {OWN}
        assert served_by(made, "embed") == {"reference/embed_foreign"}
    with engine(tiny, plugin, kernels__disable=[OWN]) as made:
        assert logprobs(made) == own
        assert served_by(made, "linear") == {"reference/linear_foreign"}


def test_a_converted_model_runs_like_one_packed_at_load(tiny: Path, plugin: Path, tmp_path: Path) -> None:
    native = tmp_path / "native"
    paths, embed = f"plugins.paths={plugin}", f"model.formats.embed={FORMAT}"
    assert cli.main(["convert", str(tiny), str(native), "--format", FORMAT, "--set", paths, "--set", embed]) == 0
    assert f"format: {FORMAT}" in (native / "manifest.yaml").read_text()
    with engine(tiny, plugin) as made, engine(native, plugin, format=None) as again:
        assert logprobs(again) == logprobs(made)
        assert served_by(again, "linear") == {OWN}
    gone = rf"embed has the format '{FORMAT}', .* \(no plugin provides it\): "
    with pytest.raises(ModelError, match=gone + r"install the plugin that brought it: int5 \(plugins\.paths\)"):
        engine(native, format=None)
    with pytest.raises(KernelError, match=r"kernels\.order: int5 .*: no kernel library of this name is installed"):
        engine(native, format=None, kernels__order="int5,reference")
    manifest = native / "manifest.yaml"
    manifest.write_text(re.sub(r"(?m)^plugins:.*\n(  .*\n)*", "", manifest.read_text()))  # as an older engine wrote it
    with pytest.raises(ModelError, match=gone + "did you mean"):
        engine(native, format=None)


@pytest.mark.slow
def test_its_tokens_nearly_equal_those_of_f32(tiny: Path, plugin: Path) -> None:
    """Against a coarser format of the core, as 5 bits with scales of 32 must err less than 4 with scales of 64."""
    with engine(tiny, format="f32") as made:
        answer = made.generate(PROMPT, GREEDY)[0]
        exact = scores(made, answer.token_ids)
    errors = {}
    for format in (FORMAT, "int4-g64", "int8-row"):
        with engine(tiny, plugin, format=format) as made:
            errors[format] = float(np.abs(scores(made, answer.token_ids) - exact).mean())
    assert errors["int8-row"] < errors[FORMAT] < errors["int4-g64"]


def test_packed_weights_are_within_half_a_step(plugin: Path) -> None:
    config = load_config(overrides={"plugins.paths": [str(plugin)]})
    form = format_lookup(Plugins.discover(config))(FORMAT)
    n, k = 40, 100
    assert (form.is_float, form.panel_bytes(k)) == (False, 2 * 11 * 64)
    w = np.random.default_rng(3).standard_normal((n, k), np.float32) * np.float32(0.1)
    w[3], w[4, 32:64], w[5] = 0, 1e-7, w[5] * np.float32(1e4)
    panels = np.zeros(3 * form.panel_bytes(k), np.uint8)
    form.pack(w, panels)
    values = form.unpack(panels, 0, 3, k)
    assert not values[n:].any()
    assert not np.signbit(values[n:]).any()
    most = np.abs(np.pad(w, ((0, 0), (0, 28)))).reshape(n, 4, 32).max(axis=2)
    step = np.repeat(most / 15, 32, axis=1)[:, :k]
    assert np.all(np.abs(values[:n] - w) <= step * (0.5 + 2.0**-6) + 15 * 2.0**-25)  # a step is an fp16
    w[17, 40] = 1e6
    with pytest.raises(InfengError, match=f"row 16: weight format {FORMAT}: output 1 is too large for an fp16 scale"):
        form.pack(w, panels)


def test_conversion_opens_only_the_library_of_the_format(
    tiny: Path, plugin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(libraries, "library_states", lambda plugins: pytest.fail("all libraries were opened"))
    plugins = Plugins.discover(load_config(overrides={"plugins.paths": [str(plugin)]}))
    assert plugins.names("quant_formats") == sorted([*BUILTIN, FORMAT])
    assert format_lookup(plugins)(FORMAT) is format_lookup(plugins)(FORMAT)
    with pytest.raises(PluginError, match="quant format int5-g23: no plugin provides it: did you mean `int5-g32`"):
        format_lookup(plugins)("int5-g23")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"kernels.order": ["reference"]}, "not open: kernels.order does not name it: add int5 or"),
        ({"kernels.disable": ["int5"]}, "not open: listed in kernels.disable"),
        ({"plugins.disable": ["int5"]}, "plugin int5 cannot be used: listed in plugins.disable"),
    ],
)
def test_a_library_that_the_manifest_forbids_is_not_opened_for_its_format(
    plugin: Path, settings: dict[str, Any], words: str
) -> None:
    plugins = Plugins.discover(load_config(overrides={"plugins.paths": [str(plugin)], **settings}))
    with pytest.raises(PluginError, match=f"quant format {FORMAT}: .*{words}"):
        format_lookup(plugins)(FORMAT)


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (("  memset(panel, 0,", "  __builtin_trap();\n  memset(panel, 0,"), r"not open: .*\(SIGILL\)"),
        (('.name = "int5-g32"', '.name = "int6-g32"'), f"promises the quant format {FORMAT}, which it does not bring"),
    ],
)
def test_a_format_that_crashes_does_so_in_the_child_and_is_named(
    build: Build, edit: tuple[str, str], words: str
) -> None:
    plugins = Plugins.discover(load_config(overrides={"plugins.paths": [str(build(*edit))]}))
    with pytest.raises(PluginError, match=words):
        format_lookup(plugins)(FORMAT)


def test_kernels_of_other_libraries_decline_it_and_serve_their_formats(tiny: Path, plugin: Path) -> None:
    """A model of two formats: nobody is refused for a format that only one library knows."""
    with engine(tiny, format="int8-row") as made:
        usual = served_by(made, "linear")
    with engine(tiny, plugin, model__formats={"layers.*.down_proj": "int8-row"}) as made:
        assert served_by(made, "linear") >= {OWN, *usual}
        made.generate(PROMPT, GREEDY)


@pytest.mark.slow
def test_installing_the_wheel_is_enough_to_use_the_format(tiny: Path, tmp_path: Path) -> None:
    source = shutil.copytree(EXAMPLE, tmp_path / "source")
    tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # meson and ninja of the same environment
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    target = ["--target", str(tmp_path / "site"), str(source)]
    subprocess.run([*pip, *target], check=True, env={**os.environ, "PATH": tools})
    [info] = (tmp_path / "site").glob("infeng_int5-*.dist-info")
    assert "Tag: py3-none-linux_" in (info / "WHEEL").read_text()
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}

    def infeng(*words: object) -> str:
        code = "import sys; from infeng_core.cli import main; sys.exit(main(sys.argv[1:]))"
        command = [sys.executable, "-P", "-c", code, *map(str, words)]
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment, cwd=tmp_path)
        return done.stdout

    assert (
        json.loads(infeng("convert", tiny, "native", "--format", FORMAT, "--json"))["formats"]["layers.0.o_proj"]
        == FORMAT
    )
    why = infeng("plugins", "why", "linear", "--model", "native")
    assert "linear_int5g32" in why
    run = ("-p", "the", "-n", "8", "--temperature", "0")
    own = infeng("run", "native", *run)
    assert infeng("run", tiny, "--format", FORMAT, *run) == own
    assert infeng("run", "native", *run, "--set", f"kernels.disable={OWN}") == own
