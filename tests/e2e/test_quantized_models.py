"""Integer weights and the int8 cache against an independent model of them.

The model reads the engine's panels by the format page alone, rounds activations, keys, values and queries to int8 as
numbers, and does everything else in binary64. The engine works in binary32, so now and then a value that lies between
two steps of int8 is rounded to the other one, and the difference travels on: hence a tolerance of a share of the
logits' spread. An error in a scale, a layout or a term is far outside it, as the last test shows.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from e2e import harness
from goldens import oracle, panels
from goldens.shapes import CASES, Case
from infeng_numpy.activations import PLAIN
from infeng_numpy.backend import CACHES
from infeng_numpy.llama import Llama
from infeng_numpy.weights import arrange
from numpy.typing import NDArray

from infeng_core import Engine
from infeng_core.errors import KernelError

FORMATS = ("int8-row", "int4-g64", "int4-g32", "int4-a256")
MEAN, MOST = 0.01, 0.08  # tolerated difference, as a share of the logits' standard deviation


def checkpoint(engine: Engine) -> dict[str, NDArray[np.float64]]:
    """Return the engine's weights by the names of a checkpoint, read from its panels and cut apart here."""
    config, model = engine.model.config, engine.model
    q_rows, kv_rows = config.heads * config.head_dim, config.kv_heads * config.head_dim
    out: dict[str, NDArray[np.float64]] = {}

    def matrix(name: str) -> NDArray[np.float64]:
        packed = model.tensors[name]
        raw = np.frombuffer(packed.buffer, np.uint8, packed.panels * packed.panel_bytes, packed.offset)
        return panels.read(packed.format, raw.reshape(packed.panels, -1), packed.k)

    def cut(joined: str, names: tuple[str, ...], rows: list[NDArray[np.intp]]) -> None:
        for name, columns in zip(names, rows, strict=True):
            out[f"{name}.weight"] = matrix(joined)[columns]
            if f"{joined}.bias" in model.vectors:
                out[f"{name}.bias"] = model.vectors[f"{joined}.bias"][columns]

    for i in range(config.layers):
        ours, theirs = f"layers.{i}", f"model.layers.{i}"
        attention, mlp = f"{theirs}.self_attn", f"{theirs}.mlp"
        k_at = whole_panels(q_rows)
        v_at = k_at + whole_panels(kv_rows)
        rows = [np.arange(q_rows), k_at + np.arange(kv_rows), v_at + np.arange(kv_rows)]
        cut(f"{ours}.qkv_proj", tuple(f"{attention}.{x}_proj" for x in "qkv"), rows)
        cut(f"{ours}.o_proj", (f"{attention}.o_proj",), [np.arange(config.hidden)])
        turns = np.arange(2 * whole_panels(config.intermediate)).reshape(-1, 2, 16)  # (panel, gate or up, 16)
        gate, up = (turns[:, half].ravel()[: config.intermediate] for half in (0, 1))
        cut(f"{ours}.gate_up_proj", (f"{mlp}.gate_proj", f"{mlp}.up_proj"), [gate, up])
        cut(f"{ours}.down_proj", (f"{mlp}.down_proj",), [np.arange(config.hidden)])
        out[f"{theirs}.input_layernorm.weight"] = model.vectors[f"{ours}.attn_norm"]
        out[f"{theirs}.post_attention_layernorm.weight"] = model.vectors[f"{ours}.mlp_norm"]
    out["model.norm.weight"] = model.vectors["norm"]
    out["model.embed_tokens.weight"] = matrix("embed")[: config.vocab]
    if not config.tie_embeddings:
        out["lm_head.weight"] = matrix("lm_head")[: config.vocab]
    return out


def whole_panels(rows: int) -> int:
    return -(-rows // 16) * 16


def independent(engine: Engine, case: Case, kv: str) -> NDArray[np.float64]:
    """Return the logits of the case's positions by the independent model with a cache of ``kv``."""
    config = engine.model.config
    cache = CACHES[kv](
        layers=config.layers, slots=oracle.BLOCKS * 16, kv_heads=config.kv_heads, head_dim=config.head_dim
    )
    integers = {name for name, packed in engine.model.tensors.items() if packed.format.startswith("int")}
    weights = arrange(config, checkpoint(engine).__getitem__, lambda name: PLAIN if name in integers else None)
    return oracle.prefill(Llama(config, weights, cache), case.prompt, case.positions)


def difference(got: NDArray[np.floating], expected: NDArray[np.float64]) -> tuple[float, float]:
    """Return the mean and the largest absolute difference over the standard deviation of ``expected``."""
    off = np.abs(got - expected) / expected.std()
    return float(off.mean()), float(off.max())


def every_format() -> Iterator[Any]:
    """Yield case, format and cache: each format in one case with one cache, caches in turn; the rest slow."""
    caches = ("f32", "f16", "int8")
    for i, case in enumerate(CASES):
        for j, format in enumerate(("f32", "bf16", *FORMATS)):
            for k, cache in enumerate(caches):
                is_usual = (i + j) % len(CASES) == 0 and j % len(caches) == k
                at_night = format == "int4-a256" and cache != "int8"
                marks = () if is_usual else pytest.mark.nightly if at_night else pytest.mark.slow
                yield pytest.param(case, format, cache, marks=marks, id=f"{case.name}-{format}-{cache}")


@pytest.mark.slow
@pytest.mark.parametrize(("case", "format", "cache"), list(every_format()))
def test_weight_formats_compute_with_their_dequantized_values(
    format: str, cache: str, case: Case, reduced: dict[str, Path]
) -> None:
    settings = {"model.format": format, "model.formats": {}, "kv_cache.dtype": cache}
    with harness.engine(reduced[case.name], settings) as engine:
        assert set(engine.model.formats_used.values()) == {format}
        got = harness.logits(engine, case.prompt, case.positions)
        expected = independent(engine, case, cache)
    mean, most = difference(got, expected)
    if format not in FORMATS and cache == "f32":
        assert most < 1e-4
    assert mean < MEAN
    assert most < MOST


def every_rotation() -> Iterator[Any]:
    """Yield case and cache: each cache in one case, refusals, which are quick, in all; the rest slow."""
    usual = {("biased", "int8h"), ("linear", "k8v4h"), ("qwen2", "int4h"), ("biased", "fp8h"), ("linear", "int8hi")}
    usual |= {("biased", "k8v4hi"), ("qwen2", "int4hi")}
    for case in CASES:
        for cache in ("int8h", "k8v4h", "int4h", "fp8h", "int8hi", "k8v4hi", "int4hi"):
            marks = () if (case.name, cache) in usual or case.name == "llama3" else pytest.mark.slow
            yield pytest.param(case, cache, marks=marks, id=f"{case.name}-{cache}")


@pytest.mark.parametrize(("case", "cache"), list(every_rotation()))
def test_rotated_caches_compute_with_their_dequantized_values(cache: str, case: Case, reduced: dict[str, Path]) -> None:
    settings = {"model.format": "f32", "model.formats": {}, "kv_cache.dtype": cache}
    if case.name == "llama3":  # heads of 12
        with pytest.raises(KernelError, match=f"{cache} takes heads of a multiple of 8 elements, not of 12"):
            harness.engine(reduced[case.name], settings)
        return
    with harness.engine(reduced[case.name], settings) as engine:
        got = harness.logits(engine, case.prompt, case.positions)
        expected = independent(engine, case, cache)
        without = independent(engine, case, "f32")
    mean, most = difference(got, expected)
    assert mean < MEAN
    assert most < MOST
    assert difference(without, expected)[0] > 2 * mean


@pytest.mark.parametrize("format", FORMATS)
def test_the_numpy_backend_computes_the_same_logits(format: str, case: Case, reduced: dict[str, Path]) -> None:
    settings = {"model.format": format, "model.formats": {}, "kv_cache.dtype": "int8", "backend.use": "numpy"}
    with harness.engine(reduced[case.name], settings) as engine:
        got = harness.logits(engine, case.prompt, case.positions, chunks=2)
        expected = independent(engine, case, "int8")
    assert difference(got, expected)[1] < 1e-5


def test_the_tolerance_tells_formats_apart(case: Case, reduced: dict[str, Path]) -> None:
    """The same weights without rounding to int8 are another model, and the tolerance sees that."""
    settings = {"model.format": "int4-g64", "model.formats": {}, "kv_cache.dtype": "int8"}
    with harness.engine(reduced[case.name], settings) as engine:
        expected = independent(engine, case, "int8")
        without_int8_cache = independent(engine, case, "f32")
    assert difference(without_int8_cache, expected)[0] > MEAN
