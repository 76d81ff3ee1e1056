"""Formats whose linears read wide or rotated groups: the tensors that may have them, and their storage."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import quantized_parts as parts
import tiny_model
import yaml
from infeng_convert.activations import choice_over, fitting
from infeng_convert.conversion import convert
from infeng_convert.identity import conversion_key
from quantized_parts import Kind

from infeng_core.cli import main
from infeng_core.errors import ModelError, UsageError
from infeng_core.formats.artifacts.reader import read_native
from infeng_core.formats.format_choice import FormatChoice
from infeng_core.formats.quant import BUILTIN, ROW, VARIANTS, builtin_format, misfit, over
from infeng_core.formats.rotation import rotated, rotated_inputs

SHAPE = tiny_model.Shape(hidden=128, intermediate=176, heads=2, kv_heads=1, head_dim=64, tie=False)
WIDE = "int6-p32-a256-h64"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model.write(tmp_path_factory.mktemp("source"), SHAPE)


@pytest.fixture(scope="module")
def made(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("made") / "model"
    options = ["--format", "int6-p32", "--act-group", "256", "--rotate", "h64"]
    assert main(["convert", str(source), str(path), *options]) == 0
    return path


@pytest.mark.parametrize("block", [64, 128, 256])
def test_rotated_weights_times_rotated_inputs_are_the_product(block: int) -> None:
    random = np.random.default_rng(0)
    w, x = (random.standard_normal((rows, 512)).astype(np.float32) for rows in (7, 5))
    assert np.allclose(rotated(w, block) @ rotated_inputs(x, block).T, w @ x.T, atol=1e-4)
    assert np.allclose(rotated_inputs(rotated(w, block), block), w, atol=1e-6)
    spread = rotated_inputs(np.eye(512, dtype=np.float32), block)
    assert (np.count_nonzero(spread, axis=1) == block).all() and len(np.unique(np.abs(spread))) == 2


def test_the_rotation_is_a_hadamard_matrix_over_eight_and_its_own_inverse() -> None:
    matrix = rotated(np.eye(64, dtype=np.float32))
    assert np.array_equal(np.abs(matrix), np.full((64, 64), 1 / 8)) and np.array_equal(matrix @ matrix, np.eye(64))
    x = np.random.default_rng(0).standard_normal((5, 192)).astype(np.float32)
    assert np.allclose(rotated(rotated(x)), x, atol=1e-6)
    assert np.allclose(np.linalg.norm(rotated(x), axis=1), np.linalg.norm(x, axis=1), rtol=1e-6)


def test_a_format_names_its_groups_and_rotation_and_has_the_bytes_of_the_plain_one() -> None:
    assert len(VARIANTS) == 19 and not set(VARIANTS) & set(BUILTIN)
    wide = builtin_format(WIDE)
    assert (wide.activation, wide.group, wide.is_rotated, wide.stored) == ("int8-g256", 256, True, "int6-p32")
    assert wide.panel_bytes(128) == BUILTIN["int6-p32"].panel_bytes(128)
    assert over(wide, 64) is BUILTIN["int6-p32"] and over(wide, 128).name == "int6-p32-a128"
    for name, group in (("int4-g64", 128), ("int8-row", 128), ("int4-g64", ROW)):
        with pytest.raises(UsageError, match="integer sub-scales"):
            over(BUILTIN[name], group)


def test_rows_with_one_scale_are_rotated_in_the_largest_block_that_fits() -> None:
    for name in ("int4-p32", "int8-row"):
        row = over(BUILTIN[name], ROW)
        assert row is not BUILTIN[name] and row == builtin_format(f"{name}-arow-h256")
        assert (row.activation, row.group, row.is_rotated, row.stored) == ("int8-row", ROW, True, name)
        assert [row.rotation(k) for k in (2048, 896, 576, 5632)] == [256, 128, 64, 256]
    assert [builtin_format(WIDE).rotation(k) for k in (2048, 896)] == [64, 64]
    assert BUILTIN["int4-p32"].rotation(2048) == 0


def test_tensors_that_cannot_be_wide_or_rotated_are_plain(made: Path) -> None:
    model = read_native(made, builtin_format)
    down = [name for name in model.tensors if name.endswith("down_proj")]  # 176 inputs
    assert down and {model.formats_used[name] for name in down} == {"int6-p32"}
    assert model.formats_used["embed"] == "int8-row"
    assert {model.formats_used[name] for name in model.tensors if name not in (*down, "embed")} == {WIDE}


def test_embeddings_and_widths_not_divisible_by_64_do_not_fit() -> None:
    for name, k, format, fits in (
        ("layers.0.experts.down_proj", 128, "int4-p32-a128-h64", True),
        ("layers.0.experts.down_proj", 40, "int4-p32-h64", False),
        ("layers.0.shared.down_proj", 128, "int4-p32-a128", True),
        ("layers.0.down_proj", 176, "int4-p32-a256", True),
        ("layers.0.down_proj", 176, "int4-p32-h64", False),
        ("embed", 128, "int4-p32-h64", False),
        ("layers.0.down_proj", 131072, "int4-p32-arow-h256", True),
        ("layers.0.down_proj", 131328, "int4-p32-arow-h256", False),
        ("layers.0.down_proj", 176, "int4-p32-arow-h256", False),
        ("embed", 128, "int4-p32", True),
    ):
        assert (misfit(name, k, builtin_format(format)) == "") is fits
        assert fitting(name, k, builtin_format(format)).name == (format if fits else "int4-p32")


def test_rotated_weights_are_read_back_unrotated(made: Path, source: Path, tmp_path: Path) -> None:
    convert(source, tmp_path / "plain", FormatChoice("int6-p32", {"embed": "int8-row"}), progress=False)
    models = [read_native(folder, builtin_format) for folder in (made, tmp_path / "plain")]
    for name, weight in tiny_model.tensors(SHAPE).items():
        if name.endswith(("q_proj.weight", "gate_proj.weight")):
            found, plain = (model.matrix(name) for model in models)
            assert not np.array_equal(found, plain)
            assert 0 < np.abs(found - weight).max() < 2 * np.abs(plain - weight).max()
            norms = np.linalg.norm(weight, axis=1)
            assert np.allclose(np.linalg.norm(found, axis=1), norms, rtol=0.01)


def test_defaults_keep_the_conversion_key(source: Path, made: Path, tmp_path: Path) -> None:
    plain, asked = tmp_path / "plain", tmp_path / "asked"
    options = ["--format", "int4-p32", "--json"]
    assert main(["convert", str(source), str(plain), *options]) == 0
    assert main(["convert", str(source), str(asked), *options, "--act-group", "64", "--rotate", "none"]) == 0
    assert (plain / "manifest.yaml").read_bytes() == (asked / "manifest.yaml").read_bytes()
    choices = [
        FormatChoice("int4-p32"),
        choice_over(FormatChoice("int4-p32"), 128, is_rotated=False, lookup=builtin_format),
    ]
    assert len({conversion_key(source, choice) for choice in choices}) == 2


def test_unset_options_keep_the_formats_own_setting() -> None:
    named = FormatChoice("int4-p32-a128-h64", {"layers.0.*": "int5-p32", "embed": "int4-p32", "lm_head": "int8-row"})
    for group, turned, base, first in (
        (None, None, "int4-p32-a128-h64", "int5-p32"),
        (256, None, "int4-p32-a256-h64", "int5-p32-a256"),
        (None, False, "int4-p32-a128", "int5-p32"),
        (64, False, "int4-p32", "int5-p32"),
        (ROW, None, "int4-p32-arow-h256", "int5-p32-arow-h256"),
    ):
        made = choice_over(named, group, is_rotated=turned, lookup=builtin_format)
        head = "int8-row-arow-h256" if group == ROW else "int8-row"
        assert (made.base, made.patterns) == (base, {**named.patterns, "layers.0.*": first, "lm_head": head})


def test_a_format_without_variants_is_an_error(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out")
    assert main(["convert", str(source), out, "--format", "int4-g64", "--act-group", "128"]) == 2
    assert "int4-p32" in capsys.readouterr().err
    assert main(["convert", str(source), out, "--quality", "int8", "--rotate", "h64"]) == 2
    assert "int8-row" in capsys.readouterr().err
    assert main(["convert", str(source), f"{out}.gguf", "--rotate", "h64"]) == 2
    assert "--rotate" in capsys.readouterr().err
    assert main(["convert", str(source), out, "--format", "int4-p32", "--act-group", "row", "--rotate", "none"]) == 2
    assert "always rotated" in capsys.readouterr().err
    with pytest.raises(UsageError, match="embed cannot be int4-p32-h64"):
        convert(source, tmp_path / "out", FormatChoice("int4-p32", {"embed": "int4-p32-h64"}), progress=False)


def test_integers_of_quantized_checkpoints_are_not_rotated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kind = Kind(group=32)
    model = parts.write(tmp_path / "m", parts.gptq_scheme(kind), lambda *given: parts.gptq(*given, 1), kind)
    options = ["--format", "int4-p32", "--rotate", "h64"]
    assert main(["convert", str(model.directory), str(tmp_path / "out"), *options]) == 2
    assert "integers cannot be rotated" in capsys.readouterr().err


def test_a_profile_over_wide_groups_is_another_recipe(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    asked = ["convert", str(source), str(out), "--quality", "small", "--calibrate", "none", "--force"]
    rows = "int4-p32-arow-h256"
    for options, used in (([], rows), (["--act-group", "128"], "int4-p32-a128"), ([], rows)):
        assert main([*asked, *options]) == 0
        recipe = yaml.safe_load((out / "recipe.yaml").read_text())
        assert used in recipe["formats"].values() and set(recipe["formats"].values()) <= {used, "int4-p32", "int8-row"}


def test_a_manifest_that_turns_embeddings_is_refused(made: Path, tmp_path: Path) -> None:
    text = (made / "manifest.yaml").read_text()
    begin = text.index("  embed: {")
    line = text[begin : text.index("\n", begin)]
    broken = line.replace("format: int8-row", f"format: {WIDE}")
    assert broken != line
    (tmp_path / "manifest.yaml").write_text(text.replace(line, broken))
    with pytest.raises(ModelError, match="cannot have"):
        read_native(tmp_path, builtin_format)


@pytest.mark.slow
def test_calibration_uses_the_kernels_rounded_inputs(source: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("The quick brown fox jumps over the lazy dog. " * 25, encoding="utf-8")
    out = tmp_path / "out"
    options = ["--format", "int4-p32", "--act-group", "128", "--rotate", "h64", "--calibrate", str(text), "--json"]
    assert main(["convert", str(source), str(out), *options]) == 0
    model = read_native(out, builtin_format)
    assert model.quantizer == "gptq" and model.formats_used["layers.0.qkv_proj"] == "int4-p32-a128-h64"
    weight = tiny_model.tensors(SHAPE)["model.layers.0.self_attn.q_proj.weight"]
    found = model.matrix("model.layers.0.self_attn.q_proj.weight")
    assert np.corrcoef(found.ravel(), weight.ravel())[0, 1] > 0.99
    assert json.dumps(model.formats_used["embed"]) == '"int8-row"'
