"""Damage to a converted directory, even with new checksums, gives an InfengError or a sound model."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from infeng_convert.conversion import convert
from infeng_convert.manifest_file import write_manifest

from infeng_core.errors import InfengError, ModelError
from infeng_core.formats.artifacts.manifest import read_manifest
from infeng_core.formats.artifacts.reader import read_native
from infeng_core.formats.format_choice import FormatChoice
from infeng_core.formats.quant import builtin_format
from infeng_core.formats.safetensors import read_header
from infeng_core.formats.tensors import LoadedModel

FORMATS = ("int4-p32", "int5-p32", "int6-p32", "int4-p32-a128-h64", "int8-row", "int4-g64", "int8-g32", "int4-a128",
           "bf16", "f32")  # fmt: skip
SHARD = "weights-00001.safetensors"
VALUES: tuple[Any, ...] = (None, True, -1, 0, 1, 63, 1 << 20, 1 << 62, 1 << 70, 0.5, "", "U8", "F32", "F4", [], {}, [0])


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory, write_model: Callable[..., Path]) -> Callable[[str], Path]:
    """Converted models that no test may change, by format."""
    folder = tmp_path_factory.mktemp("artifacts")
    sizes = {"hidden_size": 128, "num_hidden_layers": 1, "head_dim": 16, "num_attention_heads": 4,
             "num_key_value_heads": 2, "attention_bias": True}  # fmt: skip
    source = write_model(folder / "model", **sizes)

    def made(format: str) -> Path:
        path = folder / format
        return path if path.exists() else convert(source, path, FormatChoice(format)).path

    return made


class Patient:
    """An artifact under treatment: damaged, read, healed."""

    def __init__(self, source: Path, folder: Path) -> None:
        self.path = shutil.copytree(source, folder)
        self.sound = {path.name: path.read_bytes() for path in self.path.iterdir()}
        self.manifest = read_manifest(self.path, builtin_format)
        self.header = read_header(self.path / SHARD)
        self.model = read_native(self.path, builtin_format)

    def heal(self) -> None:
        for name, data in self.sound.items():
            (self.path / name).write_bytes(data)

    def sign(self, data: bytes) -> None:
        """Write weights under a manifest that agrees with them."""
        (self.path / SHARD).write_bytes(data)

        def digest(name: str) -> str:
            info = self.header.tensors[name]
            return hashlib.sha256(data[info.begin : info.begin + info.nbytes]).hexdigest()

        entries: dict[str, Any] = {
            part: {name: replace(entry, sha256=digest(name)) for name, entry in getattr(self.manifest, part).items()}
            for part in ("tensors", "vectors")
        }
        write_manifest(replace(self.manifest, **entries), self.path / "manifest.yaml")

    def read(self, **options: Any) -> LoadedModel | None:
        """Load it; None where it was refused, in one line that says what to do."""
        try:
            return read_native(self.path, builtin_format, **options)
        except InfengError as error:
            assert isinstance(error, ModelError)
            assert error.remedy
            assert str(error).isprintable()
            return None

    def is_as_before(self, model: LoadedModel) -> bool:
        same = all(
            bytes(memoryview(model.tensors[name].buffer).cast("B")[model.tensors[name].offset :][: tensor.nbytes])
            == bytes(memoryview(tensor.buffer).cast("B")[tensor.offset :][: tensor.nbytes])
            for name, tensor in self.model.tensors.items()
        )
        return same and model.id == self.model.id


def is_sound(model: LoadedModel) -> bool:
    """Return whether all numbers are finite, and those with sub-scales within what kernels multiply."""
    for tensor in model.tensors.values():
        grid = tensor.quant.grid(tensor.k)
        if grid is not None and grid.sub is not None:
            codes, scales, sub, zeros = tensor.quant.unpack_units(tensor.buffer, tensor.offset, tensor.panels, tensor.k)
            column = np.arange(tensor.k) // grid.sub.group
            steps = sub[:, column].astype(int) * (codes.astype(int) - zeros[:, column])
            if not (np.isfinite(scales).all() and steps.min() >= -128 and steps.max() <= 127):
                return False
        elif not np.isfinite(tensor.dequantize()).all():
            return False
    return all(np.isfinite(vector).all() for vector in model.vectors.values())


def bytes_of_tensors(patient: Patient, rng: random.Random) -> None:
    """Put odd bytes into one tensor, at its beginning, where scales are, or anywhere; signed."""
    data = bytearray(patient.sound[SHARD])
    info = rng.choice(list(patient.header.tensors.values()))
    for _ in range(rng.choice((1, 2, 8))):
        wide = rng.choice((info.nbytes, min(256, info.nbytes)))
        place = info.begin + rng.randrange(wide) // 4 * 4
        piece = rng.choice((b"\xff", b"\x00", b"\x80", b"\x7f\x80", b"\x00\x00\x80\x7f", b"\x00\x7c", rng.randbytes(3)))
        data[place : place + len(piece)] = piece
    patient.sign(bytes(data))


def bytes_of_files(patient: Patient, rng: random.Random) -> None:
    """Flip, cut, insert and repeat bytes of any file."""
    name = rng.choice(list(patient.sound))
    data = bytearray(patient.sound[name])
    for _ in range(rng.choice((1, 1, 3))):
        place = rng.randrange(len(data) + 1)
        other = rng.randrange(len(data) + 1)
        kind = rng.randrange(5)
        if kind == 0 and place < len(data):
            data[place] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del data[place : place + rng.choice((1, 8, 64, 1 << 20))]
        elif kind == 2:
            data[place:place] = rng.randbytes(rng.choice((1, 8, 64)))
        elif kind == 3:
            data[place : place + 64] = data[other : other + 64]
        else:
            data[place : place + 8] = rng.choice((b"-1", b"1e999", b": {", b"\x00" * 8, b"\xff" * 8))
    (patient.path / name).write_bytes(data)


def header_of_weights(patient: Patient, rng: random.Random) -> None:
    """Change what the header of the weights says: types, shapes, places, names, keys that are there twice."""
    data = patient.sound[SHARD]
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + length])
    names = [name for name in header if name != "__metadata__"]
    for _ in range(rng.choice((1, 1, 3))):
        name, other = rng.sample(names, 2)
        kind = rng.randrange(6)
        entry = header.get(name)
        if not isinstance(entry, dict):
            continue
        if kind == 0:
            entry[rng.choice(("dtype", "shape", "data_offsets", "more"))] = rng.choice(VALUES)
        elif kind == 1 and isinstance(entry.get("shape"), list):
            entry["shape"] = [rng.choice(VALUES), *entry["shape"][1:]]
        elif kind == 2 and isinstance(entry.get("data_offsets"), list):
            entry["data_offsets"] = [*entry["data_offsets"][:1], rng.choice(VALUES)]
        elif kind == 3 and other in header:
            header[name], header[other] = header[other], header[name]
        elif kind == 4:
            header.pop(name)
        else:
            header[rng.choice((name.upper(), "__metadata__", "x" * 300))] = entry
    text = json.dumps(header)
    if rng.random() < 0.2:
        text = text[:-1] + f', "{names[0]}": ' + json.dumps(header.get(names[0])) + "}"
    made = text.encode()
    made += b" " * (-(8 + len(made)) % 64)
    length = rng.choice((len(made),) * 6 + (0, len(made) - 1, len(made) + 64, 1 << 40, (1 << 64) - 1))
    (patient.path / SHARD).write_bytes(struct.pack("<Q", length) + made + data[8 + struct.unpack("<Q", data[:8])[0] :])


def treat(patient: Patient, rng: random.Random, count: int) -> tuple[int, int]:
    """Damage an artifact in every way; return how many were refused of those signed, and of the others."""
    signed = plain = 0
    for _ in range(count):
        bytes_of_tensors(patient, rng)
        model = patient.read()
        signed += model is None
        assert model is None or is_sound(model)
        patient.heal()
        for damage in (bytes_of_files, header_of_weights):
            damage(patient, rng)
            model = patient.read()
            plain += model is None
            assert model is None or patient.is_as_before(model)
            patient.read(load="mmap")
            patient.heal()
    return signed, plain


@pytest.mark.parametrize("format", ["int4-p32", "int6-p32", "int8-row"])
def test_damage_is_refused_or_harmless(artifacts: Callable[[str], Path], tmp_path: Path, format: str) -> None:
    _, plain = treat(Patient(artifacts(format), tmp_path / "a"), random.Random(format), 3)
    assert plain > 2


@pytest.mark.nightly
@pytest.mark.parametrize("format", FORMATS)
def test_many_random_damages_are_refused_or_harmless(
    artifacts: Callable[[str], Path], tmp_path: Path, format: str
) -> None:
    signed, plain = treat(Patient(artifacts(format), tmp_path / "a"), random.Random(), 300)
    assert plain > 450
    assert signed > 5


def scales_at(format: str) -> tuple[int, bytes]:
    """Return where in a panel the first scale or weight is, and bytes that make it infinite."""
    if "p32" in format or format in ("int8-row", "f32"):
        return 0, struct.pack("<f", float("inf"))
    return 0, b"\x80\x7f" if format == "bf16" else b"\x00\x7c"


@pytest.mark.parametrize("format", FORMATS)
def test_a_scale_that_is_not_finite_is_refused_with_tensor_and_row(
    artifacts: Callable[[str], Path], tmp_path: Path, format: str
) -> None:
    patient = Patient(artifacts(format), tmp_path / "a")
    place, infinite = scales_at(format)
    begin = patient.header.tensors["layers.0.down_proj"].begin + place
    data = bytearray(patient.sound[SHARD])
    data[begin : begin + len(infinite)] = infinite
    patient.sign(bytes(data))
    stored = builtin_format(format)
    with pytest.raises(
        ModelError, match=rf"{SHARD}: tensor layers\.0\.down_proj is no {stored.stored}.* \(row 0,?.*inf"
    ):
        read_native(patient.path, builtin_format)


def test_a_vector_that_is_not_finite_is_refused_with_its_row(artifacts: Callable[[str], Path], tmp_path: Path) -> None:
    patient = Patient(artifacts("int4-p32"), tmp_path / "a")
    begin = patient.header.tensors["norm"].begin + 4 * 5
    data = bytearray(patient.sound[SHARD])
    data[begin : begin + 4] = struct.pack("<f", float("nan"))
    patient.sign(bytes(data))
    with pytest.raises(ModelError, match=rf"{SHARD}: vector norm holds nan at row 5"):
        read_native(patient.path, builtin_format)


def test_swapped_tensors_and_false_rotations_are_detected(artifacts: Callable[[str], Path], tmp_path: Path) -> None:
    patient = Patient(artifacts("int4-p32"), tmp_path / "a")
    data = bytearray(patient.sound[SHARD])
    up = patient.header.tensors["layers.0.gate_up_proj"]
    half = up.nbytes // 2
    data[up.begin : up.begin + half], data[up.begin + half : up.begin + 2 * half] = (
        data[up.begin + half : up.begin + 2 * half],
        data[up.begin : up.begin + half],
    )
    (patient.path / SHARD).write_bytes(data)
    with pytest.raises(ModelError, match=r"tensor layers\.0\.gate_up_proj does not match its checksum"):
        read_native(patient.path, builtin_format)
    patient.heal()
    for tensor, name, why in (
        ("layers.0.o_proj", "int4-p32-a96", "unknown"),
        ("layers.0.o_proj", "int5-p32", "has panel_bytes"),
        ("layers.0.o_proj", "int4-p32-h64", "changed or damaged"),
        ("embed", "int4-p32-h64", "which it cannot have"),
        ("layers.0.down_proj", "int4-p32-h64", "its 100 inputs are no multiple of 64"),
    ):
        text = patient.sound["manifest.yaml"].decode()
        changed = text.replace(f"{tensor}: {{format: int4-p32,", f"{tensor}: {{format: {name},")
        assert changed != text
        (patient.path / "manifest.yaml").write_text(changed)
        with pytest.raises(ModelError, match=why):
            read_native(patient.path, builtin_format)
