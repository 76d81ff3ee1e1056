"""Codes aim at what the model that is not quantized makes of the text, not at the same weights of drifted inputs."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiny_model
from goldens.families import QWEN3_MOE
from infeng_calibrate.calibrator import forward
from infeng_calibrate.forward import Forward
from infeng_calibrate.gptq import Gptq
from infeng_calibrate.statistics import Statistics, moments, sums
from infeng_convert.activations import fitting
from infeng_convert.checkpoints import open_checkpoint
from infeng_convert.interfaces.quantizers import Quantized, QuantTarget, Seen
from infeng_convert.packing import gather_vector, pack_tensor
from infeng_convert.profiles import is_inner

from infeng_core.formats.quant import BUILTIN, QuantFormat, builtin_format
from infeng_core.formats.shards import aligned_bytes
from infeng_core.formats.tensors import PackedTensor
from infeng_core.plug.assembly import load_config
from infeng_core.plug.manager import Plugins


def course(source: Path, formats: dict[str, str], read: QuantFormat) -> tuple[dict[str, Seen], list[Forward]]:
    """What is known of each tensor as it would be read in ``read``, all as beside but those of ``formats``."""
    config = load_config(overrides={"threads.count": 2})
    plugins, checkpoint = Plugins.discover(config), open_checkpoint(source)
    texts = [np.random.default_rng(0).integers(3, 60, 50).astype(np.int32) for _ in range(7)]
    begun: list[Forward] = []

    def start(model: object) -> Forward:
        begun.append(forward(texts, config, plugins, checkpoint.config))
        return begun[-1]

    told, found = Statistics(start, 2, aims=True), {}
    told.begin(checkpoint)
    for vector in checkpoint.layout.vectors:
        told.vector(vector.name, gather_vector(vector, checkpoint))
    for spec in checkpoint.layout.tensors:
        seen = told.of(spec.name, fitting(spec.name, spec.k, read))(0)
        if seen is not None:
            found[spec.name] = seen
        quant = builtin_format(formats.get(spec.name, "int8-row" if is_inner(spec.name) else "bf16"))
        nbytes = quant.panel_bytes(spec.k)
        out = aligned_bytes(spec.panels * nbytes)
        pack_tensor(spec, checkpoint, quant, out, 1)
        told.put(PackedTensor(spec.name, quant.name, spec.n, spec.k, spec.panels, nbytes, out, 0, quant))
        out[:] = 0  # its memory changes afterwards
    return found, begun


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model.write(tmp_path_factory.mktemp("source"), tiny_model.Shape(tie=False, bias=True))


def test_inputs_do_not_drift_without_quantization(source: Path) -> None:
    found, _ = course(source, {}, BUILTIN["bf16"])
    assert all(seen.drift is not None and not seen.drift.any() for seen in found.values())


@pytest.mark.parametrize("format", ["int4-p32", "int4-p32-h64"])
def test_inputs_drift_by_the_rounding_of_kernels(source: Path, format: str) -> None:
    found, _ = course(source, {}, builtin_format(format))
    first = found["layers.0.qkv_proj"]
    assert first.drift is not None and first.drift.any()
    assert np.abs(first.drift).max() < 0.01 * np.abs(first.statistic).max()


def test_inputs_after_a_quantized_tensor_drift(source: Path) -> None:
    plain, _ = course(source, {"layers.1.qkv_proj": "int4-g64"}, BUILTIN["bf16"])
    drifting = {name for name, seen in plain.items() if seen.drift is not None and seen.drift.any()}
    names = list(plain)
    assert drifting == set(names[names.index("layers.1.o_proj") :])


@pytest.mark.parametrize("format", ["int4-g64", "int4-p32"])
def test_aimed_weights_bring_outputs_of_drifted_inputs_near_the_reference(format: str) -> None:
    rng = np.random.default_rng(1)
    n, k, rows = 24, 64, 2000
    y = (rng.standard_normal((rows, 8)) @ rng.standard_normal((8, k)) + rng.standard_normal((rows, k))).astype(
        np.float32
    )
    x = (0.9 * y + 0.1 * y @ rng.standard_normal((k, k)) / 8).astype(np.float32)
    w = rng.standard_normal((n, k)).astype(np.float32)

    def values(made: Quantized) -> np.ndarray:
        if made.sub_scales is None:
            return np.repeat(made.scales, 64, 1).astype(float) * made.codes
        wide, zero = (np.repeat(one, 32, 1).astype(int) for one in (made.sub_scales, made.zeros))
        return made.scales.astype(float) * wide * (made.codes - zero)

    def loss(made: Quantized) -> float:
        return float(np.square(y @ w.T - x @ values(made).T).mean())

    target = QuantTarget("w", "layers.0.o_proj", format, BUILTIN[format].grid(k), moments([x], BUILTIN["f32"], 1))
    plain = Gptq(1).quantize(w.copy(), target)
    aimed = replace(target, drift=sums([x], BUILTIN["f32"], [y], 1)[1])
    one, two = (Gptq(threads).quantize(w.copy(), aimed) for threads in (1, 2))
    assert np.array_equal(one.codes, two.codes) and np.array_equal(one.scales, two.scales)
    assert loss(one) < 0.5 * loss(plain)


def test_models_with_experts_have_no_reference_pass(tmp_path: Path) -> None:
    """A row that goes to other experts there says nothing of these."""
    found, begun = course(QWEN3_MOE.write(tmp_path / "model"), {}, BUILTIN["bf16"])
    assert len(begun) == 1
    assert found and all(seen.drift is None for seen in found.values())
