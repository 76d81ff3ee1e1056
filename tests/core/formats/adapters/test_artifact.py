"""The engine-native adapter: it returns the packed values, detects damage, and refuses another base."""

import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from adapter_calls import convert_adapter, load_adapter
from drawn import examples
from goldens.adapted import ADAPTED, Adapted
from hypothesis import given, settings
from hypothesis import strategies as st
from infeng_numpy.packed import unpack_stacked
from infeng_peft import artifact as writing
from infeng_peft.adapter import read_peft
from infeng_peft.artifact import describe, write_artifact
from infeng_peft.packing import pack

from infeng_core.errors import AdapterError, InfengError
from infeng_core.formats.adapters.artifact import FILE
from infeng_core.formats.adapters.image import AdapterImage, Pieces
from infeng_core.formats.adapters.packed import PackedAdapter
from infeng_core.formats.adapters.snapshot import digest
from infeng_core.formats.adapters.spec import A_FORMAT
from infeng_core.formats.adapters.target_modules import target_modules
from infeng_core.formats.floats import widened
from infeng_core.formats.shards import aligned_bytes
from infeng_core.formats.tensors import LoadedModel

CASES = {case.name: case for case in ADAPTED if not case.combines}
Bases = Callable[[Adapted, str], LoadedModel]


def arrays(adapter: PackedAdapter) -> list[Any]:
    """Everything that decides the output, in order."""
    found: list[Any] = [adapter.id, adapter.base, adapter.dtype, adapter.base_name]
    for name, tensor in adapter.tensors.items():
        found += [name, tensor.rank, tensor.a, tensor.scaling]
        for part in tensor.parts:
            found += [part.rank, part.u_column, part.first_panel, part.panel_step, part.panels]
            found += [part.b, part.b_scale, part.row_scale, part.bias]
    if adapter.embedding is not None:
        part = adapter.embedding.part
        found += [adapter.embedding.a, adapter.embedding.scaling, part.b, part.b_scale, part.row_scale]
    for name, packed in adapter.saved_tensors.items():
        found += [name, packed.format, packed.n, packed.k, packed.dequantize()]
    for name, vector in adapter.saved_vectors.items():
        found += [name, vector]
    return found


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray):
        return isinstance(other, np.ndarray) and one.dtype == other.dtype and np.array_equal(one, other)
    return bool(one == other)


@pytest.mark.parametrize("dtype", ["f32", "bf16", "int8", "int8t4"])
@pytest.mark.parametrize("case", CASES.values(), ids=lambda case: case.name)
def test_an_artifact_loads_as_the_adapter_that_it_was_made_from(
    case: Adapted, dtype: Any, bases: Bases, tmp_path: Path
) -> None:
    model = bases(case, "int8-row")
    if not case.fits(dtype):
        with pytest.raises(AdapterError, match="trainable_token_indices does not fit int8t4"):
            convert_adapter(case.directory, tmp_path / "artifact", model, dtype)
        return
    made = convert_adapter(case.directory, tmp_path / "artifact", model, dtype)
    wanted, found = load_adapter(case.directory, model, dtype), load_adapter(made.path, model, dtype)
    assert all(equal(*pair) for pair in zip(arrays(wanted), arrays(found), strict=True))
    assert found.nbytes == wanted.nbytes and not made.reused
    assert (tmp_path / "artifact" / FILE).stat().st_size % 64 == 0


@pytest.fixture(scope="module")
def artifact(bases: Bases, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("artifact") / "plain"
    return convert_adapter(CASES["lora"].directory, folder, bases(CASES["lora"], "f32"), "int8").path


def copy_with(artifact: Path, tmp_path: Path, change: Callable[[bytes], bytes]) -> Path:
    """Return a copy whose bytes are changed."""
    copy = tmp_path / "copy"
    copy.mkdir(exist_ok=True)
    (copy / FILE).write_bytes(change((artifact / FILE).read_bytes()))
    return copy


def rewrite(data: bytes, change: Callable[[dict[str, Any], dict[str, Any]], object]) -> bytes:
    """Change the metadata and the description in it, and write a file that is whole otherwise."""
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    document = json.loads(header["__metadata__"]["adapter"])
    change(header["__metadata__"], document)
    header["__metadata__"].setdefault("adapter", "")
    if header["__metadata__"]["adapter"]:
        header["__metadata__"]["adapter"] = json.dumps(document)
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % 64)
    return len(text).to_bytes(8, "little") + text + data[8 + length :]


@pytest.mark.parametrize("dtype", ["f32", "bf16", "int8"])
def test_a_file_of_version_1_is_laid_out_anew(
    dtype: Any, bases: Bases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, format = CASES["lora"], A_FORMAT[dtype]
    model = bases(case, "f32")
    now = pack(read_peft(case.directory, model.config), model, dtype)
    pieces = Pieces(now.spec, model, is_first=True)
    data = aligned_bytes(pieces.total)
    data[:] = 0
    rows = {}
    for name, old in pieces.views(data).items():
        k, rank = target_modules(model.config).specs[name].k, now.spec.rank(name)
        for key, array in old.items():
            given = now.arrays[name][key]
            if key == "a":  # panels over all inputs
                format.pack(unpack_stacked(format, given, rank, k), array)
                rows[name] = format.unpack(array, 0, -(-rank // 16), k)[:rank]
            else:
                array[:] = widened(given) if key.endswith("b_scale") else given
    monkeypatch.setattr(writing, "ARTIFACT_VERSION", (1, 0))
    image = AdapterImage(now.spec, pieces, data, digest(data))
    write_artifact(image, dataclasses.replace(describe(image, model), major=1), tmp_path)
    monkeypatch.undo()
    found = load_adapter(tmp_path, model, dtype)
    assert set(map(now.spec.rank, rows)) == {4, 8, 12}
    for name, tensor in found.tensors.items():
        k = target_modules(model.config).specs[name].k
        assert tensor.a.nbytes == now.arrays[name]["a"].nbytes
        assert np.array_equal(unpack_stacked(format, tensor.a, tensor.rank, k), rows[name])
        for index, part in enumerate(tensor.parts):
            assert np.array_equal(part.b, now.arrays[name][f"{index}.b"])
            assert part.b_scale is None or np.array_equal(part.b_scale, now.arrays[name][f"{index}.b_scale"])


def test_plain_lora_fits_every_base_of_its_shapes(artifact: Path, bases: Bases) -> None:
    adapters = [load_adapter(artifact, bases(CASES["lora"], format), "int8") for format in ("f32", "int4-g32")]
    assert adapters[0].id != adapters[1].id and adapters[0].base != adapters[1].base


@pytest.mark.parametrize("name", ["dora", "bias-all", "lora-bias", "saved"])
def test_an_adapter_that_depends_on_the_base_is_bound_to_it(name: str, bases: Bases, tmp_path: Path) -> None:
    case = CASES[name]
    made = convert_adapter(case.directory, tmp_path / "bound", bases(case, "f32"), "int8")
    assert made.bound
    with pytest.raises(AdapterError, match=r"computed from another base or another format.*with this model and format"):
        load_adapter(made.path, bases(case, "int8-row"), "int8")


def test_another_shape_or_storage_or_scale_is_refused(artifact: Path, bases: Bases, tmp_path: Path) -> None:
    with pytest.raises(AdapterError, match=r"its base .* has hidden = 72, this one has 64"):
        load_adapter(artifact, bases(CASES["rslora"], "f32"), "int8")
    with pytest.raises(AdapterError, match=r"is stored as int8.*--dtype bf16"):
        load_adapter(artifact, bases(CASES["lora"], "f32"), "bf16")
    model = bases(CASES["lora"], "f32")
    halved, wanted = (load_adapter(d, model, "int8", scale=0.5) for d in (artifact, CASES["lora"].directory))
    assert halved.id == wanted.id and halved.id != load_adapter(artifact, model, "int8").id
    bound = convert_adapter(CASES["dora"].directory, tmp_path / "bound", bases(CASES["dora"], "f32"), "int8")
    with pytest.raises(AdapterError, match=r"cannot be scaled by 0.5"):
        load_adapter(bound.path, bases(CASES["dora"], "f32"), "int8", scale=0.5)


@pytest.mark.parametrize("version", ["1.0", "1.9"])
def test_tails_in_a_file_of_version_1_are_refused(version: str, bases: Bases, tmp_path: Path) -> None:
    model = bases(CASES["lora"], "f32")
    made = convert_adapter(CASES["lora"].directory, tmp_path / "tails", model, "int8t4").path
    assert json.loads(header_of(made))["__metadata__"]["infeng_adapter"] == "2.1"
    for dtype in ("int8", "bf16"):
        with pytest.raises(AdapterError, match=rf"is stored as int8t4, this engine's adapters are {dtype}"):
            load_adapter(made, model, dtype)
    copy = copy_with(made, tmp_path, lambda data: rewrite(data, lambda m, d: m.update(infeng_adapter=version)))
    with pytest.raises(AdapterError, match="int8t4', which version 1 does not have"):
        load_adapter(copy, model, "int8t4")


def header_of(artifact: Path) -> str:
    data = (artifact / FILE).read_bytes()
    return data[8 : 8 + int.from_bytes(data[:8], "little")].decode()


@pytest.mark.parametrize("dtype", ["int8", "int8t4"])
def test_any_changed_byte_is_found(dtype: Any, bases: Bases, tmp_path: Path) -> None:
    artifact = convert_adapter(CASES["lora"].directory, tmp_path / "whole", bases(CASES["lora"], "f32"), dtype).path
    size, model = (artifact / FILE).stat().st_size, bases(CASES["lora"], "f32")
    random = np.random.default_rng(0)

    def spoil(place: int) -> Callable[[bytes], bytes]:
        return lambda data: data[:place] + bytes([data[place] ^ (1 << random.integers(8))]) + data[place + 1 :]

    whole = load_adapter(artifact, model, dtype).id
    for place in (*range(12), *random.integers(0, size, 150).tolist(), size - 1):
        try:
            found = load_adapter(copy_with(artifact, tmp_path, spoil(place)), model, dtype)
        except AdapterError as error:
            assert error.remedy
        else:  # a space of the header's padding, or the version of the writer: nothing that is used
            assert found.id == whole


@settings(max_examples=examples(150), deadline=None)
@given(cut=st.floats(0, 1), tail=st.binary(max_size=64))
def test_a_truncated_or_lengthened_file_is_refused(
    artifact: Path, bases: Bases, tmp_path_factory: pytest.TempPathFactory, cut: float, tail: bytes
) -> None:
    data = (artifact / FILE).read_bytes()
    changed = data[: int(len(data) * cut)] + tail
    if changed != data:
        copy = copy_with(artifact, tmp_path_factory.mktemp("cut"), lambda _: changed)
        with pytest.raises(AdapterError):
            load_adapter(copy, bases(CASES["lora"], "f32"), "int8")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda m, d: m.update(infeng_adapter="3.0"), "reads 2.x: update infeng"),
        (lambda m, d: m.update(infeng_adapter="0.9"), "reads 2.x: convert the adapter again"),
        (lambda m, d: m.update(infeng_adapter="1.0"), "id does not match the contents"),
        (lambda m, d: m.update(infeng_adapter="one"), "must be a version"),
        (lambda m, d: m.pop("infeng_adapter"), "infeng_adapter is missing"),
        (lambda m, d: m.update(adapter=""), "not valid JSON"),
        (lambda m, d: d.update(dtype="int4"), "dtype is 'int4'"),
        (lambda m, d: d.update(dtype="int8t4"), "hold a rank of 4, with int8t4 it must be a multiple of 8"),
        (lambda m, d: d.update(id="0" * 64), "id does not match the contents"),
        (lambda m, d: d["tensors"].update({"layers.0.qkv_proj": [[4, 2.0, False]]}), "two flags"),
        (lambda m, d: d["tensors"].update({"layers.0.qkv_proj": [[1 << 40, 2.0, False, False]] * 3}), "two flags"),
        (lambda m, d: d["tensors"].update({"layers.0.qkv_proj": [[4, 1e300, False, False]] * 3}), "two flags"),
        (lambda m, d: d["tensors"].update({"layers.0.qkv_proj": []}), "list of parts"),
        (lambda m, d: d.update(tensors=[]), "tensors is \\[\\], it must be a mapping"),
        (lambda m, d: d.update(saved_vectors={}), "must be a list of names"),
        (lambda m, d: d.update(embedding=7), "two flags"),
    ],
)
def test_a_wrong_description_is_refused(artifact: Path, bases: Bases, tmp_path: Path, change: Any, reason: str) -> None:
    copy = copy_with(artifact, tmp_path, lambda data: rewrite(data, change))
    with pytest.raises(AdapterError, match=reason):
        load_adapter(copy, bases(CASES["lora"], "f32"), "int8")


def forged(artifact: Path, tmp_path: Path, change: Callable[[dict[str, Any]], object], data: bytes = b"") -> Path:
    """Return an artifact of a stranger who can compute checksums: its id and its digest are right."""
    from infeng_core.formats.adapters.artifact import Artifact, _parse
    from infeng_core.models.typed_fields import Fields

    whole = (artifact / FILE).read_bytes()
    length = int.from_bytes(whole[:8], "little")
    payload = data or whole[8 + length :]

    def sign(metadata: dict[str, Any], document: dict[str, Any]) -> None:
        change(document)
        document["digest"] = digest(np.frombuffer(payload, np.uint8))
        parsed: Artifact = _parse(Fields(document, "forged"))
        document["id"] = parsed.id

    return copy_with(artifact, tmp_path, lambda _: rewrite(whole[: 8 + length] + payload, sign))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda d: d["tensors"].update({"layers.9.qkv_proj": [[1, 1.0, False, False]] * 3}), "no tensor of the base"),
        (lambda d: d["tensors"].update({"embed": [[1, 1.0, False, False]]}), "no tensor of the base"),
        (lambda d: d["tensors"].update({"layers.0.o_proj": [[1, 1.0, False, False]] * 2}), "no tensor of the base"),
        (lambda d: d["tensors"].update({"layers.0.o_proj": [[200, 1.0, False, False]]}), "that it must be"),
        (lambda d: d["tensors"].pop("layers.0.o_proj"), "that it must be"),
        (lambda d: d["saved_tensors"].update({"embed": "int4-g64"}), "computed from another base|saved as"),
        (lambda d: d["saved_vectors"].append("layers.0.qkv_proj.bias"), "no norm of the base"),
        (lambda d: d["saved_vectors"].extend(["norm", "norm"]), "no norm of the base"),
        (lambda d: d.update(embedding=[0, 1.0, False, False]), "no rank"),
    ],
)
def test_a_forged_description_that_does_not_fit_the_data_is_refused(
    artifact: Path, bases: Bases, tmp_path: Path, change: Any, reason: str
) -> None:
    model = bases(CASES["lora"], "f32")
    assert load_adapter(forged(artifact, tmp_path, lambda d: None), model, "int8").tensors
    with pytest.raises(AdapterError, match=reason):
        load_adapter(forged(artifact, tmp_path, change), model, "int8")


def test_an_artifact_that_is_no_regular_file_is_not_read(bases: Bases, tmp_path: Path) -> None:
    model, path = bases(CASES["lora"], "f32"), tmp_path / FILE
    for make in (lambda: os.mkfifo(path), lambda: path.symlink_to("/dev/zero"), path.mkdir):
        make()
        with pytest.raises(AdapterError, match=r"infeng_adapter\.safetensors: (cannot be read|is a link)"):
            load_adapter(tmp_path, model, "int8")
        path.rmdir() if path.is_dir() else path.unlink()


@pytest.mark.parametrize("dtype", ["f32", "bf16", "int8"])
def test_nan_in_a_forged_file_is_refused(dtype: Any, bases: Bases, tmp_path: Path) -> None:
    case, model = CASES["dora"], bases(CASES["dora"], "f32")
    made = convert_adapter(case.directory, tmp_path / "made", model, dtype).path
    whole = (made / FILE).read_bytes()
    length = int.from_bytes(whole[:8], "little")
    nan = {"f32": np.float32(np.nan).tobytes(), "bf16": b"\xc0\x7f", "int8": np.float32(np.inf).tobytes()}[dtype]
    data = nan + whole[8 + length + len(nan) :]
    with pytest.raises(AdapterError, match=r"layers\.0\.qkv_proj holds NaN or infinity in its a"):
        load_adapter(forged(made, tmp_path, lambda d: None, data), model, dtype)


def test_a_saved_matrix_that_its_format_forbids_is_refused(bases: Bases, tmp_path: Path) -> None:
    case, model = CASES["saved"], bases(CASES["saved"], "int4-p32")
    made = convert_adapter(case.directory, tmp_path / "made", model, "int8").path
    whole = (made / FILE).read_bytes()
    length = int.from_bytes(whole[:8], "little")
    place = json.loads(whole[8 : 8 + length])["saved.lm_head"]
    data = bytearray(whole[8 + length :])
    data[place["data_offsets"][0] + 64] = 0xFF  # s = 16, z = 15: units below 7 are out of range
    data[place["data_offsets"][0] + 128] = 0
    with pytest.raises(AdapterError, match=r"its lm_head is no int4-p32 \(row 0, column 0: the weight is -"):
        load_adapter(forged(made, tmp_path, lambda d: None, bytes(data)), model, "int8")


def test_an_artifact_is_no_source_and_no_neighbour_of_a_peft_adapter(
    artifact: Path, bases: Bases, tmp_path: Path
) -> None:
    model = bases(CASES["lora"], "f32")
    with pytest.raises(AdapterError, match="is converted already"):
        convert_adapter(artifact, tmp_path / "again", model, "int8")
    copy = copy_with(artifact, tmp_path, lambda data: data)
    (copy / "adapter_config.json").write_bytes((CASES["lora"].directory / "adapter_config.json").read_bytes())
    with pytest.raises(AdapterError, match="of which only one can be meant"):
        load_adapter(copy, model, "int8")


def test_errors_of_artifacts_are_adapter_errors(artifact: Path, bases: Bases) -> None:
    assert issubclass(AdapterError, InfengError)
    with pytest.raises(AdapterError, match="no such adapter directory"):
        load_adapter(artifact / "absent", bases(CASES["lora"], "f32"), "int8")
    with pytest.raises(AdapterError, match="is a file: give the directory"):
        load_adapter(artifact / FILE, bases(CASES["lora"], "f32"), "int8")
