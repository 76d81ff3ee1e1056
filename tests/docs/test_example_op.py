"""The op of docs/examples/op: a library that describes it, and a family whose graph uses it, in engines."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import caches
import numpy as np
import pytest
import tiny_adapter
import tiny_model
from infeng_abi import CFLAGS, include_dir
from safetensors.numpy import load_file, save_file

from infeng_core import cli
from infeng_core.engine import Engine
from infeng_core.errors import InfengError, KernelError, ModelError
from infeng_core.models import families
from infeng_core.models.ops import Apply, Graph, Linear, Op, Residual, RowOp, Scale, Value
from infeng_core.requests.request import SamplingParams

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "op"
GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
PROMPTS = ([5, 6, 7, 8, 9], [100, 101], list(range(20, 60)), [7])
SHAPE = tiny_model.Shape(intermediate=172)  # rows that do not fill their last panel
Build = Callable[..., Path]


@pytest.fixture(autouse=True)
def own(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nothing of the user's settings, a cache of these tests, and no family of theirs that stays."""
    for name in [name for name in os.environ if name.startswith("INFENG_") and name != "INFENG_TEST_DATA"]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("INFENG_CACHE", str(caches.shared(tmp_path_factory)))
    yield
    families.added.pop("clip", None)


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Return what compiles the example, after an edit of its source, and gives its plugin.yaml."""

    def compile_example(*edit: str) -> Path:
        folder = tmp_path_factory.mktemp("clip")
        source = (EXAMPLE / "clip.c").read_text()
        assert not edit or edit[0] in source
        (folder / "clip.c").write_text(source.replace(*edit) if edit else source)
        package = Path(shutil.copytree(EXAMPLE / "infeng_clip", folder / "infeng_clip"))
        flags = ["-O2", "-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", f"-I{include_dir()}", *CFLAGS]
        command = ["cc", "-shared", "-fPIC", *flags, str(folder / "clip.c"), "-lm"]
        subprocess.run([*command, "-o", str(package / "libinfeng_clip.so")], check=True)
        return package / "plugin.yaml"

    return compile_example


@pytest.fixture(scope="module")
def plugin(build: Build) -> Path:
    return build()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a checkpoint of the family with gains around 1."""
    return checkpoint(
        tmp_path_factory.mktemp("model") / "clip", gain=lambda random, size: 1 + random.normal(0, 0.3, size)
    )


def checkpoint(folder: Path, gain: Callable[[np.random.Generator, int], Any]) -> Path:
    tiny_model.write(folder, SHAPE)
    config = json.loads((folder / "config.json").read_text())
    words = {"model_type": "clip", "architectures": ["ClipForCausalLM"]}
    (folder / "config.json").write_text(json.dumps({**config, **words}))
    tensors, random = load_file(folder / "model.safetensors"), np.random.default_rng(5)
    for layer in range(SHAPE.layers):
        values = np.asarray(gain(random, SHAPE.intermediate), np.float32)
        tensors[f"model.layers.{layer}.mlp.gain.weight"] = values
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def engine(
    model: Path, *plugins: Path, format: str = "f32", adapters: Mapping[str, Path] | None = None, **settings: Any
) -> Engine:
    overrides = {
        "plugins.paths": [str(path) for path in plugins],
        "kernels.order": "clip,*,reference" if plugins else "*,reference",
        "model.format": format,
        "model.formats": {},
    }
    overrides |= {key.replace("__", "."): value for key, value in settings.items()}
    return Engine(model, threads=2, adapters=adapters or {}, overrides=overrides)


def tokens(made: Engine) -> list[tuple[int, ...]]:
    return [one.token_ids for one in made.generate([list(prompt) for prompt in PROMPTS], GREEDY)]


def served_by(made: Engine, op: str) -> set[str]:
    return {f"{bound.library}/{bound.kernel}" for bound in made.bound() if bound.op == op}


@pytest.mark.parametrize("format", ["f32", "int8-row"])
def test_with_a_gain_of_1_and_a_wide_limit_the_model_is_a_llama(plugin: Path, tmp_path: Path, format: str) -> None:
    """Its values pass through the op unchanged, so the op is where it belongs and nowhere else."""
    clipped = checkpoint(tmp_path / "clip", gain=lambda random, size: np.ones(size))
    with engine(tiny_model.write(tmp_path / "plain", SHAPE), format=format) as made:
        expected = tokens(made)
    with engine(clipped, plugin, format=format, clip__limit=1e9) as made:
        assert tokens(made) == expected
        assert served_by(made, "clip") == {"clip/clip_plain"}
    with engine(clipped, plugin, format=format, clip__limit=0.05) as made:
        assert tokens(made) != expected


def test_the_op_s_kernels_are_explained(model: Path, plugin: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with engine(model, plugin) as made:
        [one] = {(bound.detail, bound.rows) for bound in made.bound() if bound.op == "clip"}
    assert one[0] == f"layers.*.gain {SHAPE.intermediate} x{SHAPE.layers}"
    settings = ["--set", f"plugins.paths={plugin}", "--set", "kernels.order=clip,*,reference"]
    assert cli.main(["plugins", "why", "clip", "--model", str(model), *settings]) == 0
    assert "clip/clip_plain" in capsys.readouterr().out


@pytest.mark.parametrize("format", ["f32", "int8-row"])
def test_adapters_in_a_batch_get_the_tokens_that_they_get_alone(
    model: Path, plugin: Path, tmp_path: Path, format: str
) -> None:
    adapters = {name: tiny_adapter.write(tmp_path / name, seed, shape=SHAPE) for seed, name in enumerate("ab")}
    prompts, names = [list(prompt) for prompt in PROMPTS], [None, "a", "b", "a"]
    with engine(model, plugin, format=format, adapters=adapters) as made:
        pairs = zip(prompts, names, strict=True)
        alone = [made.generate([prompt], GREEDY, adapters=[name])[0].token_ids for prompt, name in pairs]
        together = [one.token_ids for one in made.generate(prompts, GREEDY, adapters=names)]
        assert together == alone
        assert served_by(made, "clip") == {"clip/clip_plain"}
        assert made.generate(prompts[:1], GREEDY, adapters=["a"])[0].token_ids != alone[0]


def family_of(model: Path, plugin: Path) -> Any:
    """Return the class of the example's family, which is imported with its first engine."""
    engine(model, plugin).close()
    return sys.modules["infeng_clip"].Clipped


def graph(*ops: Op, **values: Value) -> Callable[[Any], Graph]:
    """Return a graph of the example's with further ops before its head, and further values."""

    def make(config: Any) -> Graph:
        plain = families.families()["llama"].graph(config)
        return Graph({**plain.values, **values}, (*plain.ops[:-2], *ops, *plain.ops[-2:]), plain.logits)

    return make


def made_of(op: RowOp) -> Callable[[Any], Graph]:
    return graph(op, Linear("layers.0.down_proj", op.out, "other"), clipped=Value(176), other=Value(64))


@pytest.mark.parametrize(
    ("op", "words"),
    [
        (RowOp("clop", "gated", "clipped"), "op clop: no plugin provides it: did you mean `clip`"),
        (RowOp("clip", "gated", "clipped"), "the op clip and gives it no gain: give it the name of a vector"),
        (
            RowOp("clip", "gated", "clipped", {"gain": "layers.0.gain", "slope": 1.0}),
            "the op clip and gives it an operand slope",
        ),
        (RowOp("clip", "gated", "clipped", {"gain": 2.0}), "the op clip and gives it 2.0 as gain: give it the name"),
        (
            RowOp("clip", "gated", "clipped", {"gain": "layers.0.gain", "limit": "norm"}),
            "gives it 'norm' as limit: give it a number",
        ),
        (RowOp("clip", "gated", "clipped", {"gain": "norm"}, columns=172), "gives it norm of 64 values as gain"),
        (RowOp("clip", "gated", "clipped", {"gain": "layers.9.gain"}), "its graph names 'layers.9.gain'"),
        (RowOp("clip", "gated", "gated", {"gain": "layers.0.gain"}), "lets it write gated, which it reads"),
        (RowOp("clip", "gated", "clipped", {}, {"gain": "hidden"}), "the op clip and gives it no gain"),
    ],
    ids=str,
)
def test_a_graph_that_misuses_an_op_is_an_error_that_names_it(
    model: Path, plugin: Path, monkeypatch: pytest.MonkeyPatch, op: RowOp, words: str
) -> None:
    family = family_of(model, plugin)
    monkeypatch.setattr(family, "graph", lambda self, config: made_of(op)(config))
    with pytest.raises((ModelError, KernelError)) as caught:
        engine(model, plugin)
    assert words in str(caught.value)


def test_without_the_library_the_error_names_op_and_plugin(model: Path, plugin: Path) -> None:
    with pytest.raises(KernelError, match=r"op clip: plugin clip \(plugins\.paths\) brings it.*kernels\.disable"):
        engine(model, plugin, kernels__disable=["clip"])


@pytest.mark.parametrize("format", ["f32", "int8-row"])
def test_steps_of_the_op_equal_an_op_of_their_own(
    model: Path, plugin: Path, monkeypatch: pytest.MonkeyPatch, format: str
) -> None:
    """Its kernel fuses none, so both become the same ops of the program."""
    family, steps = family_of(model, plugin), (Scale(0.5), Residual("gated"))
    usual = family.graph
    found = []
    for apart in (False, True):

        def scaled(self: Any, config: Any, apart: bool = apart) -> Graph:
            plain = usual(self, config)
            ops: list[Op] = []
            for op in plain.ops:
                if isinstance(op, RowOp) and apart:
                    ops += [replace(op, out="middle"), Apply("middle", "clipped", steps)]
                else:
                    ops.append(replace(op, steps=steps) if isinstance(op, RowOp) else op)
            return Graph({**plain.values, "middle": plain.values["clipped"]}, tuple(ops), plain.logits)

        monkeypatch.setattr(family, "graph", scaled)
        with engine(model, plugin, format=format) as made:
            found.append(tokens(made))
    monkeypatch.setattr(family, "graph", usual)
    with engine(model, plugin, format=format) as made:
        assert found[0] == found[1] != tokens(made)


def test_the_backend_numpy_refuses_the_op_by_name(model: Path, plugin: Path) -> None:
    with pytest.raises(KernelError, match="family clip: its graph has the op clip, for which there is no function"):
        engine(model, plugin, backend__use="numpy")


def test_a_kernel_that_crashes_is_refused_with_the_op(model: Path, build: Build) -> None:
    broken = build("const float* gain = args->gain.data;", "const float* gain = args->gain.data;\n  __builtin_trap();")
    with pytest.raises(InfengError, match=r"clip.*no kernel fits.*SIGILL"):
        engine(model, broken)


@pytest.mark.slow
def test_installing_the_wheel_is_enough_to_run_the_family(model: Path, tmp_path: Path) -> None:
    source = shutil.copytree(EXAMPLE, tmp_path / "source")
    tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # meson and ninja of the same environment
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    target = ["--target", str(tmp_path / "site"), str(source)]
    subprocess.run([*pip, *target], check=True, env={**os.environ, "PATH": tools})
    environment: Mapping[str, str] = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    code = "import sys; from infeng_core.cli import main; sys.exit(main(sys.argv[1:]))"
    words = ["run", str(model), "-p", "the", "-n", "8", "--temperature", "0"]
    command = [sys.executable, "-P", "-c", code, *words]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout
