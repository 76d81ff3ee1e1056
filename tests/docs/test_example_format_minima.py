"""The weight format of docs/examples/format_minima: minima, sub-scales, groups of 96, and packing that sees its matrix.

Its kernel takes a bias and a residual into itself, but no adapters: it fuses them where a batch has none.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import caches
import numpy as np
import pytest
import tiny_adapter
import tiny_model
from infeng_abi import CFLAGS, include_dir
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from infeng_core import cli
from infeng_core.engine import Engine
from infeng_core.errors import InfengError
from infeng_core.formats.lookup import format_lookup
from infeng_core.formats.quant import MatrixContext, QuantFormat
from infeng_core.plug.assembly import load_config
from infeng_core.plug.manager import Plugins
from infeng_core.requests.request import SamplingParams

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "format_minima"
FORMAT, OWN = "int4-m96", "m96/linear_int4m96"
GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
PROMPTS = [[5, 6, 7, 8, 9], [11, 12, 13]]


@pytest.fixture(autouse=True)
def own(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Nothing of the user's settings, and a cache of these tests."""
    for name in [name for name in os.environ if name.startswith("INFENG_") and name != "INFENG_TEST_DATA"]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("INFENG_CACHE", str(caches.shared(tmp_path_factory)))


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile the example; its plugin.yaml."""
    folder = tmp_path_factory.mktemp("m96")
    flags = ["-O2", "-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", f"-I{include_dir()}", *CFLAGS]
    command = ["cc", "-shared", "-fPIC", *flags, str(EXAMPLE / "m96.c"), "-lm"]
    subprocess.run([*command, "-o", str(folder / "libinfeng_m96.so")], check=True)
    return Path(shutil.copy(EXAMPLE / "infeng_m96" / "plugin.yaml", folder))


@pytest.fixture(scope="module")
def form(plugin: Path) -> QuantFormat:
    return format_lookup(Plugins.discover(load_config(overrides={"plugins.paths": [str(plugin)]})))(FORMAT)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model.write(tmp_path_factory.mktemp("tiny") / "model", tiny_model.Shape(bias=True))


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_adapter.write(tmp_path_factory.mktemp("adapters") / "a", 3, rank=8)


MakeEngine = Callable[..., Engine]


@pytest.fixture
def engine(tiny: Path, plugin: Path) -> Any:
    """Return what makes an engine in the format; it is closed at the end of the test."""
    made: list[Engine] = []

    def make(model: Path = tiny, **settings: Any) -> Engine:
        overrides = {
            "plugins.paths": [str(plugin)],
            "kernels.order": "m96,*,reference",
            "model.format": FORMAT,
            "model.formats": {},
        }
        made.append(
            Engine(model, threads=2, overrides=overrides | {k.replace("__", "."): v for k, v in settings.items()})
        )
        return made[-1]

    yield make
    for each in made:
        each.close()


def linears(made: Engine) -> dict[str, set[str]]:
    """Return the kernels of linears by their details."""
    found: dict[str, set[str]] = {}
    for bound in made.bound():
        if bound.op == "linear":
            found.setdefault(bound.detail, set()).add(f"{bound.library}/{bound.kernel}")
    return found


def answers(made: Engine, adapters: Any = None) -> list[tuple[tuple[int, ...], bytes]]:
    """Return ids and the bytes of their log-probabilities, of both prompts in one batch."""
    found = made.generate(PROMPTS, GREEDY, adapters=adapters)
    scores = [
        np.array([one.logprob for one in made.score(prompt, answer.token_ids)])
        for prompt, answer in zip(PROMPTS, found, strict=True)
    ]
    return [(answer.token_ids, score.tobytes()) for answer, score in zip(found, scores, strict=True)]


def packed(form: QuantFormat, w: NDArray[np.float32], context: MatrixContext | None = None) -> NDArray[np.uint8]:
    panels = np.full(-(-len(w) // 16) * form.panel_bytes(w.shape[1]), 255, np.uint8)
    form.pack(w, panels, context=context)  # type: ignore[call-arg]
    return panels


@pytest.mark.slow
def test_its_kernel_and_the_reference_give_equal_bytes(engine: MakeEngine) -> None:
    own = engine()
    expected = answers(own)
    assert set().union(*linears(own).values()) == {OWN}
    assert any("bias" in detail for detail in linears(own))
    assert any("residual" in detail for detail in linears(own))
    plain = engine(kernels__disable=[OWN])
    assert set().union(*linears(plain).values()) == {"reference/linear_foreign"}
    assert answers(plain) == expected


@pytest.mark.parametrize("k", [8, 64, 100, 192, 200, 576])
def test_packed_weights_are_near_and_padding_is_zero(form: QuantFormat, k: int) -> None:
    rng = np.random.default_rng(k)
    w = (rng.standard_normal((40, k)) + 1.5).astype(np.float32)  # far from symmetric
    w[3], w[4] = 0, -np.abs(w[4])
    panels = packed(form, w)
    values = form.unpack(panels, 0, 3, k)
    assert len(panels) == 3 * -(-k // 192) * 26 * 64
    assert not values[40:].any()
    assert not values[3].any()
    spread = np.maximum(w.max(axis=1), 0) - np.minimum(w.min(axis=1), 0)
    assert np.all(np.abs(values[:40] - w).mean(axis=1) <= spread / 15 * 0.5)
    assert packed(form, w).tobytes() == panels.tobytes()


def test_statistics_and_the_role_decide_how_a_matrix_is_packed(form: QuantFormat) -> None:
    rng, k = np.random.default_rng(1), 192
    w = rng.standard_t(3, (64, k)).astype(np.float32)
    importance = np.where(np.arange(k) % 8 == 0, 100.0, 0.01)
    told = MatrixContext("layers.2.qkv_proj", "q_proj", None, np.diag(importance))
    plain, weighted = packed(form, w, MatrixContext("layers.2.qkv_proj", "q_proj")), packed(form, w, told)
    finer = packed(form, w, MatrixContext("layers.2.down_proj", "down_proj"))

    def loss(panels: NDArray[np.uint8], weights: NDArray[np.float64]) -> float:
        return float((np.square(form.unpack(panels, 0, 4, k) - w) * weights).sum())

    assert packed(form, w).tobytes() == plain.tobytes()
    assert loss(weighted, importance) < 0.9 * loss(plain, importance)
    assert loss(finer, np.ones(k)) < loss(plain, np.ones(k))


def test_a_value_that_does_not_fit_is_named_with_its_matrix(form: QuantFormat) -> None:
    w = np.ones((20, 100), np.float32)
    w[18, 7] = 1e9
    with pytest.raises(InfengError, match=r"row 16: weight format int4-m96: output 2 of w\.q is too large for fp16"):
        packed(form, w, MatrixContext("t", "w.q"))


def test_a_conversion_tells_the_library_of_every_matrix(
    tiny: Path, plugin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[MatrixContext] = []
    from infeng_core.formats.quant import LibraryFormat

    original = LibraryFormat.pack

    def listening(self: LibraryFormat, *arguments: Any, **how: Any) -> None:
        seen.append(how["context"])
        original(self, *arguments, **how)

    monkeypatch.setattr(LibraryFormat, "pack", listening)
    paths = f"plugins.paths={plugin}"
    assert cli.main(["convert", str(tiny), str(tmp_path / "native"), "--format", FORMAT, "--set", paths]) == 0
    told = {(context.tensor, context.part) for context in seen}
    assert ("layers.0.qkv_proj", "model.layers.0.self_attn.k_proj.weight") in told
    assert {context.role for context in seen if context.layer == 1} >= {"qkv_proj", "o_proj", "down_proj"}
    assert all(context.moments is None and context.expert is None for context in seen)


def test_steps_are_fused_in_batches_without_adapters_and_bytes_stay_equal(engine: MakeEngine, adapter: Path) -> None:
    own = engine(adapters__paths={"a": str(adapter)})
    plain = engine(adapters__paths={"a": str(adapter)}, kernels__disable=[OWN])
    found = linears(own)
    without = [detail for detail in found if "without adapters" in detail]
    assert any("without adapters + bias" in detail for detail in without)
    assert any("without adapters + bias + residual" in detail for detail in without)
    assert not any("lora" in detail for detail in found)
    assert any("lora" in detail for detail in linears(plain))
    assert "epilogue" in {bound.op for bound in own.bound() if "with adapters: lora" in bound.detail}
    results = [[answers(made, which) for which in (None, "a", ["a", None], None)] for made in (own, plain)]
    assert results[0] == results[1]
    assert results[0][0] != results[0][1]
    assert results[0][0] == results[0][3]
    assert [ids for ids, _ in answers(engine(adapters__max_resident=0))] == [ids for ids, _ in results[0][0]]


def test_an_adapter_that_replaces_the_head_is_applied_in_both_forms(engine: MakeEngine, tmp_path: Path) -> None:
    path, shape = tiny_adapter.write(tmp_path / "head", 4, rank=4, norm=True), tiny_model.Shape()
    config = json.loads((path / "adapter_config.json").read_text())
    config["modules_to_save"].append("lm_head")
    (path / "adapter_config.json").write_text(json.dumps(config))
    tensors = load_file(path / "adapter_model.safetensors")
    head = np.random.default_rng(6).standard_normal((shape.vocab, shape.hidden)).astype(np.float32)
    save_file(tensors | {"base_model.model.lm_head.weight": head}, path / "adapter_model.safetensors")
    results = []
    for disabled in ([], [OWN]):
        made = engine(adapters__paths={"h": str(path)}, kernels__disable=disabled)
        results.append([answers(made, which) for which in (None, "h", [None, "h"])])
    assert results[0] == results[1]
    assert results[0][0] != results[0][1]


def test_why_tells_what_each_linear_takes_and_what_stops_it(
    tiny: Path, plugin: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = [
        f"plugins.paths={plugin}",
        "kernels.order=m96,*,reference",
        f"model.format={FORMAT}",
        "model.formats={}",
    ]
    words = ["plugins", "why", "linear", "--model", str(tiny)]
    assert cli.main([*words, *(word for each in settings for word in ("--set", each))]) == 0
    said = capsys.readouterr().out
    lines = said[said.index("steps behind it") :].splitlines()
    [plain] = [i for i, line in enumerate(lines) if "qkv_proj" in line and "without adapters" in line]
    [adapted] = [i for i, line in enumerate(lines) if "qkv_proj" in line and "with adapters" in line]
    assert lines[plain].endswith("takes bias")
    assert lines[adapted].endswith("takes none")
    assert lines[adapted + 1] == (
        "        leaves lora + bias to an op of their own: m96/linear_int4m96: cannot take lora into itself"
    )


@pytest.mark.slow
def test_calibration_reaches_it_through_the_installed_wheel(tiny: Path, tmp_path: Path) -> None:
    source = shutil.copytree(EXAMPLE, tmp_path / "source")
    tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # meson and ninja of the same environment
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    target = ["--target", str(tmp_path / "site"), str(source)]
    subprocess.run([*pip, *target], check=True, env={**os.environ, "PATH": tools})
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}

    def infeng(*words: object) -> str:
        code = "import sys; from infeng_core.cli import main; sys.exit(main(sys.argv[1:]))"
        command = [sys.executable, "-P", "-c", code, *map(str, words)]
        return subprocess.run(command, check=True, capture_output=True, text=True, env=environment, cwd=tmp_path).stdout

    infeng("convert", tiny, "plain", "--format", FORMAT)
    infeng("convert", tiny, "fitted", "--format", FORMAT, "--calibrate", "auto")
    weights = [
        b"".join(path.read_bytes() for path in sorted((tmp_path / name).glob("*.safetensors")))
        for name in ("plain", "fitted")
    ]
    assert len(weights[0]) == len(weights[1])
    assert weights[0] != weights[1]
    run = ("-p", "the", "-n", "8", "--temperature", "0")
    own = infeng("run", "fitted", *run)
    assert infeng("run", "fitted", *run, "--set", f"kernels.disable={OWN}") == own
