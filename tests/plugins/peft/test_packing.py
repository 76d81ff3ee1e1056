"""Packed adapters have the values of PEFT's files: golden files, unpacked, against their mathematics."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from adapter_calls import load_adapter
from goldens.adapted import ADAPTED, Adapted
from goldens.peft_files import read, tensors_of
from infeng_numpy.packed import unpack_stacked
from infeng_peft.packing import pack_stacked, quantize_panels
from numpy.typing import NDArray

from infeng_core.errors import AdapterError
from infeng_core.formats.adapters.packed import LoraPart, LoraTensor, PackedAdapter
from infeng_core.formats.adapters.stacked import stacked_bytes
from infeng_core.formats.adapters.target_modules import target_modules
from infeng_core.formats.floats import widened
from infeng_core.formats.quant import BUILTIN
from infeng_core.formats.shards import aligned_bytes
from infeng_core.formats.tensors import LoadedModel

SINGLE = [case for case in ADAPTED if not case.combines]
FORMAT = {"f32": "f32", "bf16": "bf16", "int8": "int8-row"}
# Of the largest value of a matrix: rounding of A and B each, in units of what the storage keeps.
TOLERANCE = {"f32": 2e-6, "bf16": 2**-7, "int8": 0.03}

Bases = Callable[[Adapted, str], LoadedModel]


def b_of(part: LoraPart, dtype: str) -> NDArray[np.float32]:
    """(columns, rank) float32."""
    values: Any = part.b
    if dtype == "bf16":
        values = (part.b.astype(np.uint32) << 16).view(np.float32)
    elif dtype == "int8":
        assert part.b.dtype == np.int8
    rows = values.transpose(0, 2, 1).reshape(-1, part.rank).astype(np.float32)
    return rows if part.b_scale is None else rows * widened(part.b_scale)[:, None]


def a_of(tensor: LoraTensor, dtype: str, k: int) -> NDArray[np.float32]:
    """(rank, k) float32."""
    assert tensor.a.nbytes == stacked_bytes(BUILTIN[FORMAT[dtype]], tensor.rank, k)
    return unpack_stacked(BUILTIN[FORMAT[dtype]], tensor.a, tensor.rank, k)


def parts_by_module(adapter: PackedAdapter, model: LoadedModel) -> dict[str, tuple[LoraTensor, LoraPart]]:
    places = {(s.tensor, s.part.first_panel): s for s in target_modules(model.config).matrices.values()}
    found = {}
    for name, tensor in adapter.tensors.items():
        for part in tensor.parts:
            site = places[name, part.first_panel]
            assert (part.panel_step, part.panels) == (site.part.panel_step, site.part.panels)
            found[site.module] = (tensor, part)
    return found


def close(found: Any, wanted: Any, dtype: str) -> None:
    scale = float(np.abs(wanted).max()) or 1.0
    assert np.abs(np.asarray(found, np.float64) - wanted).max() <= TOLERANCE[dtype] * scale


@pytest.mark.parametrize("dtype", ["f32", "bf16", "int8"])
@pytest.mark.parametrize("case", SINGLE, ids=lambda case: case.name)
def test_a_packed_adapter_has_the_values_of_the_file(case: Adapted, dtype: Any, bases: Bases) -> None:
    model = bases(case, "f32")
    wanted = read(case.directory, dict(case.base.tensors()))
    adapter = load_adapter(case.directory, model, dtype)
    found = parts_by_module(adapter, model)
    linears = {name: change for name, change in wanted.changes.items() if name != "model.embed_tokens"}
    assert found.keys() == {name for name, change in linears.items() if change.a.size or np.any(change.bias)}
    for module, (tensor, part) in found.items():
        change, site = linears[module], target_modules(model.config).matrices[module]
        rows = site.part.rows
        assert part.rank == len(change.a)
        if part.rank:
            a = a_of(tensor, dtype, site.k) * tensor.scaling[: tensor.rank, None]
            product = b_of(part, dtype) @ a[part.u_column : part.u_column + part.rank]
            close(product[:rows], change.b @ (change.a * change.scaling[:, None]), dtype)
            assert not product[rows:].any()
        for mine, theirs, padding in ((part.row_scale, change.row_scale, 1), (part.bias, change.bias, 0)):
            if mine is None:
                assert theirs is None or not np.any(theirs)
            else:
                assert np.abs(mine[:rows] - theirs).max() <= 1e-5 and (mine[rows:] == padding).all()
    check_embedding(adapter, wanted, dtype)
    check_saved(adapter, wanted, model)


def check_embedding(adapter: PackedAdapter, wanted: Any, dtype: str) -> None:
    change = wanted.changes.get("model.embed_tokens")
    assert (adapter.embedding is None) == (change is None)
    if adapter.embedding is not None:
        embedding = adapter.embedding
        delta = embedding.a * embedding.scaling @ b_of(embedding.part, dtype).T
        close(delta[:, : len(change.b)], (change.b @ (change.a * change.scaling[:, None])).T, dtype)


def check_saved(adapter: PackedAdapter, wanted: Any, model: LoadedModel) -> None:
    matrices = {"embed": wanted.embed, "lm_head": None if wanted.head is None else wanted.head.weight}
    assert adapter.saved_tensors.keys() == {name for name, value in matrices.items() if value is not None}
    for name, packed in adapter.saved_tensors.items():
        assert (packed.dequantize() == matrices[name]).all()
    vectors = {target_modules(model.config).norms[module][0]: value for module, value in wanted.norms.items()}
    assert adapter.saved_vectors.keys() == vectors.keys()
    assert all((adapter.saved_vectors[name] == value).all() for name, value in vectors.items())


@pytest.mark.parametrize("case", [case for case in SINGLE if "dora" in case.name], ids=lambda case: case.name)
def test_norms_of_dora_follow_the_base_as_it_is_quantized(case: Adapted, bases: Bases) -> None:
    model = bases(case, "int4-g32")
    quantized = {s.part.source for s in target_modules(model.config).matrices.values()}
    base = {name: model.matrix(name) if name in quantized else value for name, value in case.base.tensors()}
    wanted, plain = read(case.directory, base), read(case.directory, dict(case.base.tensors()))
    for module, (_, part) in parts_by_module(load_adapter(case.directory, model, "f32"), model).items():
        scale = wanted.changes[module].row_scale
        assert (part.row_scale is None) == (scale is None)
        if part.row_scale is None:
            continue
        assert np.abs(part.row_scale[: len(scale)] - scale).max() <= 1e-5
        assert np.abs(part.row_scale[: len(scale)] - plain.changes[module].row_scale).max() > 1e-4


def test_scale_multiplies_the_product_and_dora_follows(bases: Bases) -> None:
    lora, dora = (next(case for case in SINGLE if case.name == name) for name in ("lora", "dora"))
    model = bases(lora, "f32")
    plain, doubled = (load_adapter(lora.directory, model, "int8", scale=scale) for scale in (1.0, 2.0))
    for name, tensor in plain.tensors.items():
        assert (doubled.tensors[name].scaling == 2 * tensor.scaling).all()
        assert (doubled.tensors[name].a == tensor.a).all()
    assert plain.id != doubled.id
    alone, whole = (load_adapter(dora.directory, model, "f32", scale=scale) for scale in (0.0, 1.0))
    with_product = parts_by_module(whole, model)
    for module, (_, part) in parts_by_module(alone, model).items():
        norm = np.linalg.norm(model.matrix(f"{module}.weight").astype(np.float64), axis=1)
        magnitude = tensors_of(dora.directory / "adapter_model.safetensors")[
            f"base_model.model.{module}.lora_magnitude_vector"
        ]
        scales, others = part.row_scale, with_product[module][1].row_scale
        assert scales is not None and others is not None
        assert np.abs(scales[: len(norm)] - magnitude / norm).max() < 1e-5
        assert np.abs(scales - others).max() > 1e-3


def test_rows_of_stacked_projections_lie_without_gaps(bases: Bases) -> None:
    case = next(case for case in SINGLE if case.name == "patterns")
    adapter = load_adapter(case.directory, bases(case, "f32"), "int8")
    tensor = adapter.tensors["layers.1.qkv_proj"]  # ranks 9, 3, 3
    assert [(part.u_column, part.rank) for part in tensor.parts] == [(0, 9), (9, 3), (12, 3)]
    assert tensor.rank == 15 and tensor.scaling.shape == (16,) and tensor.scaling[15] == 0
    assert adapter.stacked_rank == 16


@pytest.mark.parametrize("dtype", ["f32", "bf16", "int8"])
@pytest.mark.parametrize("k", [8, 64, 100, 128, 200, 320])
def test_a_last_panel_of_up_to_eight_rows_is_stored_over_half_of_the_inputs(dtype: str, k: int) -> None:
    format = BUILTIN[FORMAT[dtype]]
    whole, half = format.panel_bytes(k), format.panel_bytes(-(-k // 128) * 64)
    sizes = {0: 0, 1: half, 8: half, 9: whole, 16: whole, 17: whole + half, 24: whole + half, 25: 2 * whole}
    random = np.random.default_rng(k)
    for rank, nbytes in sizes.items():
        rows = random.standard_normal((rank, k), dtype=np.float32)
        a = aligned_bytes(nbytes)
        assert stacked_bytes(format, rank, k) == nbytes
        pack_stacked(format, rows, a)
        found = unpack_stacked(format, a, rank, k)
        assert found.shape == (rank, k)
        assert not rank or np.abs(found - rows).max() <= TOLERANCE[dtype] * np.abs(rows).max()


def test_b_is_rounded_under_the_scale_that_is_stored() -> None:
    values = np.random.default_rng(5).standard_normal((40, 8, 16), dtype=np.float32)
    values *= np.exp2(np.linspace(-90, 90, 640, dtype=np.float32)).reshape(40, 1, 16)
    values[0, :, 0] = 0
    values[1, :, 1] = np.float32(2.0**-101)
    values[2, :, 2] = (1 + 2**-8) * 127  # a scale that is rounded down as far as can be
    q = np.empty(values.shape, np.int8)
    bits = quantize_panels(values, q)
    scales = widened(bits)[:, None]
    assert bits.dtype == np.uint16 and bits[0, 0] == bits[1, 1] == 0 and scales[2, 0, 2] == 1
    assert q.max() == 127 and q.min() >= -127
    kept = bits[:, None] > 0
    assert (np.abs(values - q * scales) <= np.where(kept, scales, 1) * 0.5001)[kept.repeat(8, axis=1)].all()


def test_ids_are_equal_for_equal_contents_only(bases: Bases, tmp_path: Path) -> None:
    case = next(case for case in SINGLE if case.name == "lora")
    model = bases(case, "f32")
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in case.directory.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    ids = [load_adapter(place, model, "f32").id for place in (case.directory, copy)]
    assert ids[0] == ids[1]
    ids += [load_adapter(copy, model, dtype).id for dtype in ("bf16", "int8")]  # type: ignore[arg-type]
    ids.append(load_adapter(copy, bases(case, "int8-row"), "f32").id)
    assert len(set(ids)) == 4


def test_arrays_are_aligned_and_counted(bases: Bases) -> None:
    case = next(case for case in SINGLE if case.name == "dora")
    adapter = load_adapter(case.directory, bases(case, "f32"), "int8")
    total = 0
    for tensor in adapter.tensors.values():
        arrays = [tensor.a, *(part.b for part in tensor.parts), *(part.row_scale for part in tensor.parts)]
        assert all(array.ctypes.data % 64 == 0 for array in arrays if array is not None)
        total += tensor.a.nbytes
    assert adapter.is_dora and not adapter.saves_modules and adapter.nbytes > total > 0


def test_another_storage_or_scale_is_refused(bases: Bases) -> None:
    case = SINGLE[0]
    with pytest.raises(AdapterError, match="unknown storage 'int4'"):
        load_adapter(case.directory, bases(case, "f32"), "int4")  # type: ignore[arg-type]
    with pytest.raises(AdapterError, match="cannot be scaled by nan"):
        load_adapter(case.directory, bases(case, "f32"), "int8", scale=float("nan"))
