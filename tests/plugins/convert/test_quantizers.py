"""Quantizers: called for each integer matrix, part of keys and ids, refused by name for invalid results."""

from __future__ import annotations

import dataclasses
import re
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from convert_parts import load
from infeng_convert.conversion import convert
from infeng_convert.identity import conversion_key
from infeng_convert.interfaces.quantizers import Quantized, Quantizer, QuantTarget
from infeng_convert.quantizers import DEFAULT, Nearest, QuantizerChoice, quantizer_of
from numpy.typing import NDArray

from infeng_core.errors import ModelError, PluginError, UsageError
from infeng_core.formats.artifacts.manifest import BUILT_IN, read_manifest
from infeng_core.formats.artifacts.reader import read_native
from infeng_core.formats.format_choice import FormatChoice
from infeng_core.formats.quant import BUILTIN, Grid, QuantFormat, builtin_format
from infeng_core.plug.assembly import load_config
from infeng_core.plug.manager import Plugins

Maker = Callable[..., Path]
INT4 = FormatChoice("int4-g64", {"embed": "int8-row"})
INTEGERS = sorted(name for name, format in BUILTIN.items() if format.grid(64) is not None)
SHAPES = [(16, 64), (1, 8), (33, 172), (40, 576), (17, 20)]


def weights(n: int, k: int) -> NDArray[np.float32]:
    rng = np.random.default_rng(n * k)
    made = rng.standard_normal((n, k)) * np.exp2(rng.integers(-8, 4, (n, 1)))
    made[0, : min(k, 64)] = 0  # a group whose scale is zero
    return made.astype(np.float32)


def grid(format: str, k: int) -> Grid:
    found = BUILTIN[format].grid(k)
    assert found is not None
    return found


def target(format: str, k: int) -> QuantTarget:
    return QuantTarget("w", "layers.3.qkv_proj", format, grid(format, k))


def panels(format: QuantFormat, n: int, k: int) -> NDArray[np.uint8]:
    return np.full(-(-n // 16) * format.panel_bytes(k), 0xA5, np.uint8)


class Told:
    """The built-in rounding as a plugin's, which keeps what it was asked; None where ``leaves`` says so."""

    def __init__(self, leaves: Callable[[QuantTarget], bool] = lambda target: False) -> None:
        self.asked: list[QuantTarget] = []
        self._leaves = leaves

    def quantize(self, weights: NDArray[np.float32], target: QuantTarget) -> Quantized | None:
        assert weights.dtype == np.float32 and weights.flags.writeable and weights.flags.c_contiguous
        self.asked.append(target)
        return None if self._leaves(target) else Nearest().quantize(weights, target)


def chosen(quantizer: Quantizer, **changes: Any) -> QuantizerChoice:
    return dataclasses.replace(QuantizerChoice("told", quantizer, "teller", "0.1.0", {"ranges": 3}), **changes)


@pytest.mark.parametrize("format", INTEGERS)
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_codes_and_scales_of_nearest_give_the_bytes_of_the_built_in_rounding(format: str, n: int, k: int) -> None:
    used, w = BUILTIN[format], weights(n, k)
    packed, laid_out = panels(used, n, k), panels(used, n, k)
    used.pack(w, packed)
    made = Nearest().quantize(w, target(format, k))
    assert made.codes.shape == (n, k) and made.scales.shape == (n, grid(format, k).groups(k))
    used.pack_codes(made.codes, made.scales, laid_out, sub_scales=made.sub_scales, zeros=made.zeros, threads=2)
    np.testing.assert_array_equal(laid_out, packed)


def test_a_quantizer_is_asked_for_every_integer_matrix_in_order_and_changes_only_identity(
    make_model: Maker, tmp_path: Path
) -> None:
    source, told = make_model(), Told()
    formats = FormatChoice("int4-g64", {"embed": "int8-row", "layers.1.*": "bf16", "layers.0.o_proj": "int4-g32"})
    plain = convert(source, tmp_path / "plain", formats)
    made = convert(source, tmp_path / "made", formats, quantizer=chosen(told))
    names = [
        "self_attn.q_proj",
        "self_attn.k_proj",
        "self_attn.v_proj",
        "self_attn.o_proj",
        "mlp.gate_proj",
        "mlp.up_proj",
    ]
    layer = [f"model.layers.0.{name}.weight" for name in (*names, "mlp.down_proj")]
    assert [asked.name for asked in told.asked] == ["model.embed_tokens.weight", *layer, "lm_head.weight"]
    assert [asked.layer for asked in told.asked] == [None, *[0] * 7, None]
    assert [asked.tensor for asked in told.asked][1:4] == ["layers.0.qkv_proj"] * 3
    grids = {asked.tensor: (asked.format, asked.grid.group) for asked in told.asked}
    assert grids["embed"] == ("int8-row", 72) and grids["layers.0.o_proj"] == ("int4-g32", 32)
    assert all(asked.statistic is None and asked.budget is None for asked in told.asked)
    files = [made.path / "weights-00001.safetensors", plain.path / "weights-00001.safetensors"]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert made.id != plain.id and plain.quantizer == BUILT_IN
    record = {"name": "told", "plugin": "teller", "version": "0.1.0", "settings": {"ranges": 3}}
    assert made.quantizer == read_manifest(made.path, builtin_format).quantizer == record
    assert read_native(made.path, builtin_format).quantizer == "told"


def test_matrices_that_a_quantizer_declines_get_the_built_in_rounding(make_model: Maker, tmp_path: Path) -> None:
    source = make_model()

    class Halved:
        def quantize(self, weights: NDArray[np.float32], target: QuantTarget) -> Quantized | None:
            return None if "down" in target.name else Nearest().quantize(weights / 2, target)

    plain = read_native(convert(source, tmp_path / "plain", INT4).path, builtin_format)
    made = read_native(convert(source, tmp_path / "made", INT4, quantizer=chosen(Halved())).path, builtin_format)
    for name, factor in (("mlp.down_proj", 1), ("mlp.up_proj", 0.5), ("self_attn.k_proj", 0.5)):
        name = f"model.layers.1.{name}.weight"
        np.testing.assert_array_equal(made.matrix(name), factor * plain.matrix(name))


def test_name_plugin_version_and_settings_make_another_artifact_and_the_built_in_rounding_none(
    make_model: Maker, tmp_path: Path
) -> None:
    source = make_model()
    others = [{}, {"name": "other"}, {"plugin": "other"}, {"version": "0.1.1"}, {"settings": {"ranges": 4}}]
    choices = [DEFAULT, *(chosen(Told(), **changes) for changes in others)]
    made = [convert(source, tmp_path / f"{i}", INT4, quantizer=choice) for i, choice in enumerate(choices)]
    assert len({one.id for one in made}) == len({conversion_key(source, INT4, c) for c in choices}) == len(choices)
    assert conversion_key(source, INT4) == conversion_key(source, INT4, DEFAULT)
    document = yaml.safe_load((tmp_path / "0" / "manifest.yaml").read_text())
    assert "quantizer" not in document and document["infeng_weights"] == "1.0"
    assert convert(source, tmp_path / "1", INT4, quantizer=choices[1]).reused
    with pytest.raises(ModelError, match="exists already: give --force"):
        convert(source, tmp_path / "1", INT4)


def test_settings_of_every_kind_are_written_and_read(make_model: Maker, tmp_path: Path) -> None:
    settings = {"a": True, "b": 3, "c": 0.1, "d": "2001-01-01", "e": ("x", "y"), "f": {"z": "1", "y": "2"}, "g": None}
    made = convert(make_model(), tmp_path / "made", INT4, quantizer=chosen(Told(), settings=settings))
    assert read_manifest(made.path, builtin_format).quantizer["settings"] == settings | {"e": ["x", "y"]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": 3}, "quantizer.name is 3, it must be a string"),
        ({"settings": {"a": [["b"]]}}, r"quantizer.settings.'a' is \[\['b'\]\], which is no setting"),
        ({"settings": {"a": "4"}}, "id does not match the contents"),
        ({"more": 1}, "'more' is not a known key"),
    ],
)
def test_a_damaged_record_is_noticed(make_model: Maker, tmp_path: Path, change: dict[str, Any], message: str) -> None:
    made = convert(make_model(), tmp_path / "made", INT4, quantizer=chosen(Told()))
    document = yaml.safe_load((made.path / "manifest.yaml").read_text())
    document["quantizer"] |= change
    (made.path / "manifest.yaml").write_text(yaml.safe_dump(document))
    with pytest.raises(ModelError, match=message):
        read_manifest(made.path, builtin_format)


def test_one_matrix_at_a_time_is_in_memory(make_model: Maker, tmp_path: Path) -> None:
    size = 256
    shapes = {"hidden_size": size, "intermediate_size": size, "num_hidden_layers": 8, "vocab_size": 64}
    source = make_model(**shapes, num_attention_heads=8, num_key_value_heads=8, head_dim=size // 8)
    seen: list[tuple[int, int]] = []  # held, and the peak since the call before

    def look(target: QuantTarget) -> bool:
        seen.append(tracemalloc.get_traced_memory())
        tracemalloc.reset_peak()
        return False

    tracemalloc.start()
    convert(source, tmp_path / "made", INT4, quantizer=chosen(Told(look)))
    tracemalloc.stop()
    matrix = 4 * size * size  # bytes
    layers = seen[1:-1]
    assert len(layers) == 56 and all(held - layers[0][0] < matrix // 8 for held, _ in layers)
    assert all(peak - layers[0][0] < 2 * matrix for _, peak in layers[1:])


def test_only_a_quantizer_that_knows_sub_scales_is_asked_for_formats_that_have_them(
    make_model: Maker, tmp_path: Path
) -> None:
    source, formats = make_model(), FormatChoice("int4-p32", {"embed": "int8-row"})

    class Knows(Told):
        knows_sub_scales = True

    told, knows = Told(), Knows()
    plain = convert(source, tmp_path / "plain", formats)
    for index, quantizer in enumerate((told, knows)):
        made = convert(source, tmp_path / f"{index}", formats, quantizer=chosen(quantizer))
        files = [one.path / "weights-00001.safetensors" for one in (made, plain)]
        assert files[0].read_bytes() == files[1].read_bytes()
    assert [asked.tensor for asked in told.asked] == ["embed"]
    assert len(knows.asked) == 16 and all(asked.grid.sub for asked in knows.asked[1:])
    only = {"layers.0.o_proj": BUILTIN["int4-p32"]}
    with pytest.raises(UsageError, match="it chooses integers, every tensor is stored as int4-p32"):
        chosen(told).require_use(only, is_calibrated=False)
    with pytest.raises(UsageError, match="does not reach int4-p32"):
        chosen(told).require_use(only, is_calibrated=True)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"zeros": None}, "it has no zero points, the format has some"),
        ({"sub_scales": None}, "it has no sub-scales, the format has some"),
        ({"sub_scales": np.ones((72, 1), np.int8)}, r"its sub-scales are \(72, 1\), not \(72, 2\)"),
        ({"sub_scales": np.full((72, 2), 17, np.int8)}, "row 0, columns from 0: sub-scale 17 is outside of 1 to 16"),
    ],
)
def test_wrong_sub_scales_name_the_quantizer_and_the_tensor(
    make_model: Maker, tmp_path: Path, changes: dict[str, Any], why: str
) -> None:
    class Wrong(Nearest):
        def quantize(self, weights: NDArray[np.float32], target: QuantTarget) -> Quantized:
            made = super().quantize(weights, target)
            return dataclasses.replace(made, **changes) if target.tensor == "layers.0.o_proj" else made

    formats = FormatChoice("int4-p32", {"embed": "int8-row"})
    with pytest.raises(PluginError, match=rf"plugin teller: quantizer told: {why}, for .*layers\.0\.self_attn\.o_proj"):
        convert(make_model(), tmp_path / "made", formats, quantizer=chosen(Wrong()))


def test_memory_that_does_not_suffice_for_a_quantizer_is_refused_before_it_starts(
    make_model: Maker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs: list[int] = []
    monkeypatch.setattr("infeng_convert.packer.require_memory", lambda nbytes, *_: needs.append(nbytes))
    source = make_model()
    convert(source, tmp_path / "plain", INT4)
    convert(source, tmp_path / "made", INT4, quantizer=chosen(Told()))
    # gate: float32, codes, what those miss, two scales of each row
    assert needs[1] - needs[0] == 100 * 72 * 13 + 100 * 2 * 4


# ----------------------------------------------------------------------------------------- quantizers of plugins

PLUGIN = """
import numpy as np
from infeng_convert.api import Nearest
from infeng_core.api import ModelError, hookimpl
from infeng_convert.api import Quantized
class Bad:
    def quantize(self, weights, target):
        made = Nearest().quantize(weights, target)
        if target.tensor != "layers.1.o_proj":
            return made
        codes, scales = made.codes, made.scales
        {body}
        return Quantized(codes, scales)
@hookimpl(optionalhook=True)
def infeng_quantizers(settings): return {{"bad": Bad()}}
"""
HOME = "layers.1.self_attn.o_proj.weight"


def plugins(folder: Path, body: str, monkeypatch: pytest.MonkeyPatch) -> Plugins:
    """A plugin in a file of its own, whose quantizer is wrong about one tensor."""
    name = f"bad_{abs(hash(body))}"
    (folder / "plugin").mkdir()
    (folder / "plugin" / f"{name}.py").write_text(PLUGIN.format(body=body))
    path = folder / "plugin" / "plugin.yaml"
    path.write_text(
        f"infeng_plugin: 1\nname: maker\nversion: 0.3.0\npython: {name}\nprovides: {{quantizers: [bad]}}\n"
        "settings: {scale: {type: number, default: 1.5}}\n"
    )
    monkeypatch.syspath_prepend(folder / "plugin")
    return Plugins.discover(load_config(overrides={"plugins.paths": str(path)}))


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("raise ValueError('boom')", r"quantize\(\) raised ValueError: boom"),
        ("return codes, scales", r"the result of quantize\(\) is \(array.*, not Quantized"),
        ("codes = codes.astype(np.int64)", r"the result of quantize\(\) has a codes that is of int64, not int8"),
        ("scales = scales.astype(np.float64)", "has a scales that is of float64, not float32"),
        ("codes = codes[:-1]", r"its codes are \(71, 60\), not \(72, 60\)"),
        ("scales = scales[:, :0]", r"its scales are \(72, 0\), not \(72, 1\)"),
        ("return Quantized(codes, scales, np.zeros_like(codes))", "it has zero points, the format has none"),
        ("codes[3, 5] = 9", "row 3, column 5: code 9 is outside of -8 to 7"),
        ("scales[3] = np.nan", "row 3, columns from 0: the scale is nan"),
        ("scales[3] = 7e4", "row 3, columns from 0: the scale 70000 is too large for fp16"),
    ],
)
def test_a_wrong_answer_names_plugin_tensor_and_remedy_and_leaves_nothing(
    make_model: Maker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, why: str
) -> None:
    found, source = plugins(tmp_path, body, monkeypatch), make_model()
    message = (
        rf"plugin maker: quantizer bad: .*{why}.*, for {re.escape(str(source))}.*: tensor model\.{re.escape(HOME)}: "
        r"convert with another quantizer \(--quantizer nearest\), or ask"
    )
    with pytest.raises(PluginError, match=message):
        convert(source, tmp_path / "out" / "m", INT4, quantizer=quantizer_of("bad", found))
    assert not list((tmp_path / "out").iterdir())


def test_an_old_directory_stays_when_a_quantizer_fails(
    make_model: Maker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, source = plugins(tmp_path, "raise ValueError", monkeypatch), make_model()
    old = convert(source, tmp_path / "out" / "m", INT4)
    with pytest.raises(PluginError, match="raised ValueError"):
        convert(source, old.path, INT4, quantizer=quantizer_of("bad", found), force=True)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["m"]
    assert convert(source, old.path, INT4).reused


def test_version_and_settings_of_a_plugin_come_with_its_quantizer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choice = quantizer_of("bad", plugins(tmp_path, "pass", monkeypatch))
    assert choice.record == {"name": "bad", "plugin": "maker", "version": "0.3.0", "settings": {"scale": 1.5}}
    assert quantizer_of("nearest", Plugins.discover(load_config())) is DEFAULT


def test_a_quantizers_identity_may_differ_from_its_plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = plugins(tmp_path, "pass", monkeypatch)
    quantizer_of("bad", found)  # which imports it
    bad = sys.modules[f"bad_{abs(hash('pass'))}"].Bad
    monkeypatch.setattr(bad, "identity", ("core", "1"), raising=False)
    record = quantizer_of("bad", found).record
    assert record == {"name": "bad", "plugin": "core", "version": "1", "settings": {"scale": 1.5}}
    for wrong in ("core", ("core",), ("core", 1)):
        monkeypatch.setattr(bad, "identity", wrong)
        with pytest.raises(PluginError, match="plugin maker: quantizer bad: its identity is not a name and a version"):
            quantizer_of("bad", found)


def test_an_unknown_quantizer_error_lists_the_known_ones(make_model: Maker) -> None:
    with pytest.raises(PluginError, match="quantizer neerest: no plugin provides it: did you mean `nearest`"):
        quantizer_of("neerest", Plugins.discover(load_config()))
    with pytest.raises(UsageError, match="quantizer gptq: unknown: known here: nearest"):
        load(make_model(), load_config(overrides={"model.quantizer": "gptq"}))


def test_damaged_weights_are_not_the_quantizers_fault(make_model: Maker, tmp_path: Path) -> None:
    source = make_model(change=lambda tensors: tensors[f"model.{HOME}"].__setitem__((2, 3), np.nan))
    told = Told()
    with pytest.raises(ModelError, match=rf"tensor model\.{HOME}: holds nan at row 2, column 3"):
        convert(source, tmp_path / "out", INT4, quantizer=chosen(told))
    assert all(HOME not in asked.name for asked in told.asked)


def test_a_quantizer_with_nothing_to_choose_is_an_error(make_model: Maker, tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match="quantizer told: it chooses integers, every tensor is stored as bf16, f32: leave"
    ):
        convert(make_model(), tmp_path / "out", FormatChoice("f32", {"embed": "bf16"}), quantizer=chosen(Told()))
    assert not (tmp_path / "out").exists()


def test_a_converted_directory_keeps_its_quantizer_and_refuses_another(make_model: Maker, tmp_path: Path) -> None:
    source = make_model()
    plain = convert(source, tmp_path / "plain", INT4).path
    made = convert(source, tmp_path / "made", INT4, quantizer=chosen(Told())).path
    assert load(made, load_config()).quantizer == "told" and load(plain, load_config()).quantizer == "nearest"
    assert load(made, load_config(overrides={"model.quantizer": "told"})).quantizer == "told"
    for directory, wanted, has in ((made, "nearest", "told"), (plain, "told", "nearest")):
        with pytest.raises(UsageError, match=f"chosen by {has}, {wanted} was asked for: leave the quantizer out"):
            load(directory, load_config(overrides={"model.quantizer": wanted}))
