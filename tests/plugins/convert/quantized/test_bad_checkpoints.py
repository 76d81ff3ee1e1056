"""Any fault of a quantized checkpoint is an error with the tensor or key, the reason and the remedy."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import quantized_parts as parts
from infeng_convert.checkpoints import open_checkpoint
from infeng_convert.huggingface import read_config
from infeng_convert.quantized import scheme
from quantized_parts import Kind, Tensors

from infeng_core.errors import InfengError, ModelError

Q = "model.layers.1.self_attn.q_proj"
SOURCE = Path("config.json")


def without(part: str) -> Callable[[Tensors], object]:
    return lambda tensors: tensors.pop(f"{Q}.{part}")


def changed(part: str, change: Callable[[Any], Any], dtype: str | None = None) -> Callable[[Tensors], object]:
    def apply(tensors: Tensors) -> None:
        was, values = tensors[f"{Q}.{part}"]
        tensors[f"{Q}.{part}"] = dtype or was, np.ascontiguousarray(change(values.copy()))

    return apply


def put(place: int, value: int) -> Callable[[Any], Any]:
    def change(values: Any) -> Any:
        values[place] = value
        return values

    return change


GPTQ, AWQ, PACKED, BYTES, FP8 = "gptq", "awq", "packed", "bytes", "fp8"
BROKEN: dict[str, tuple[str, Callable[[Tensors], object], str]] = {
    "no scales": (GPTQ, without("scales"), rf"tensor {Q}\.scales is missing, though {Q}\.qweight is there"),
    "no zeros": (GPTQ, without("qzeros"), r"qzeros is missing"),
    "no codes": (GPTQ, without("qweight"), rf"tensor {Q}\.weight is missing"),
    "half of the codes": (GPTQ, changed("qweight", lambda v: v[:8]), r"qweight is \(8, 128\), .* say \(16, 128\)"),
    "codes of another type": (GPTQ, changed("qweight", lambda v: v.astype(np.int64), "I64"), "qweight is I64"),
    "scales of another group": (GPTQ, changed("scales", lambda v: v[:1]), r"scales is \(1, 128\), .* say \(2, 128\)"),
    "scales in integers": (GPTQ, changed("scales", lambda v: v.astype(np.int32), "I32"), "must be F16 or BF16 or F32"),
    "zeros of another width": (GPTQ, changed("qzeros", lambda v: v[:, :4]), r"qzeros is \(2, 4\)"),
    "an order too short": (GPTQ, changed("g_idx", lambda v: v[:64]), r"g_idx is \(64,\)"),
    "a group that is not there": (GPTQ, changed("g_idx", put(5, 2)), r"g_idx has 2 at 5, there are 2 groups"),
    "a group below zero": (GPTQ, changed("g_idx", put(7, -1)), r"g_idx has -1 at 7"),
    "a scale that is no number": (GPTQ, changed("scales", lambda v: v * np.float16("nan")), r"qweight: holds nan"),
    "a scale without bound": (GPTQ, changed("scales", lambda v: np.full_like(v, np.inf)), r"qweight: holds"),
    "awq codes by rows": (AWQ, changed("qweight", lambda v: v.T), r"qweight is \(16, 128\), .* say \(128, 16\)"),
    "awq without zeros": (AWQ, without("qzeros"), "qzeros is missing"),
    "no scale": (PACKED, without("weight_scale"), r"weight_scale is missing, though .*weight_packed is there"),
    "no zero points": (PACKED, without("weight_zero_point"), r"weight_zero_point is missing"),
    "zero points by the wrong side": (PACKED, changed("weight_zero_point", lambda v: v.T), r"zero_point is \(2, 16\)"),
    "another shape": (PACKED, changed("weight_shape", put(0, 64)), r"weight_shape says \(64, 128\)"),
    "a cut shape": (PACKED, changed("weight_shape", lambda v: v[:1]), r"weight_shape is \(1,\)"),
    "too few words": (PACKED, changed("weight_packed", lambda v: v[:, 1:]), r"weight_packed is \(128, 15\)"),
    "bytes of another size": (BYTES, changed("weight", lambda v: v[1:]), r"weight is \(127, 128\)"),
    "bytes without scales": (BYTES, without("weight_scale"), "weight_scale is missing"),
    "scales of nothing": (BYTES, changed("weight_scale", lambda v: v[:, :0]), r"weight_scale is \(128, 0\)"),
    "fp8 without scales": (FP8, without("weight_scale"), "weight_scale is missing"),
    "fp8 scales of another size": (FP8, changed("weight_scale", lambda v: v[1:]), r"weight_scale is \(127, 1\)"),
    "a tensor too many": (PACKED, lambda t: t.update({f"{Q}.scaling": ("F32", np.ones(1, np.float32))}), "no place"),
}  # fmt: skip


def write(directory: Path, method: str, change: Callable[[Tensors], object]) -> Path:
    if method == GPTQ:
        kind = Kind()
        pack: parts.Pack = lambda weight, kind: parts.gptq(weight, kind, 1)  # noqa: E731
        return parts.write(directory, parts.gptq_scheme(kind), pack, kind, change=change).directory
    if method == AWQ:
        kind = Kind(sym=False)
        return parts.write(directory, parts.awq_scheme(kind), parts.awq, kind, change=change).directory
    if method == PACKED:
        kind = Kind(sym=False)
        return parts.write(directory, parts.compressed_scheme(kind), parts.packed, kind, change=change).directory
    kind = Kind(bits=8, group=-1)
    if method == BYTES:
        said = parts.compressed_scheme(kind, "int-quantized")
        return parts.write(directory, said, parts.bytewise, kind, change=change).directory

    def floats(weight: parts.Weight, kind: Kind) -> Tensors:
        found = parts.bytewise(weight, kind)
        return found | {"weight": ("F8_E4M3", found["weight"][1].view(np.uint8))}

    said = parts.compressed_scheme(kind, "float-quantized", type="float")
    return parts.write(directory, said, floats, kind, change=change).directory


def read(directory: Path) -> None:
    """Read all of a checkpoint, as a conversion does."""
    checkpoint = open_checkpoint(directory)
    for spec in checkpoint.layout.tensors:
        for part in spec.parts:
            values = checkpoint.array(part)
            bad = np.argwhere(~np.isfinite(values.astype(np.float32) if values.dtype != np.uint16 else [[0]]))
            if len(bad):
                row = tuple(bad[0])
                raise ModelError(checkpoint.place(part), f"holds {values[row]} at row {row[0]}", "-")
            checkpoint.name(part)
    checkpoint.stored()


@pytest.mark.parametrize("case", BROKEN)
def test_a_damaged_tensor_is_named(tmp_path: Path, case: str) -> None:
    method, change, text = BROKEN[case]
    directory = write(tmp_path / "m", method, change)
    with pytest.raises(ModelError, match=text) as caught:
        read(directory)
    assert caught.value.remedy and "model.safetensors" in caught.value.what


def test_a_declared_activation_order_must_be_present(tmp_path: Path) -> None:
    kind = Kind(desc_act=True)
    pack: parts.Pack = lambda weight, kind: parts.gptq(weight, kind, 1)  # noqa: E731
    made = parts.write(tmp_path / "m", parts.gptq_scheme(kind), pack, kind, change=without("g_idx"))
    with pytest.raises(ModelError, match=rf"tensor {Q}\.g_idx is missing"):
        open_checkpoint(made.directory)


def test_packed_weights_without_a_quantization_config_get_a_remedy(tmp_path: Path) -> None:
    directory = write(tmp_path / "m", GPTQ, lambda tensors: None)
    path = directory / "config.json"
    said = json.loads(path.read_text())
    del said["quantization_config"]
    path.write_text(json.dumps(said))
    with pytest.raises(ModelError, match=r"qweight is there, but config\.json does not say how.*quantize_config\.json"):
        open_checkpoint(directory)


SCHEMES: dict[str, tuple[dict[str, Any], str]] = {
    "another method": ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "quant_method is 'bitsandbytes'"),
    "no method": ({"bits": 4}, "quant_method is missing"),
    "a method of numbers": ({"quant_method": 4}, "quant_method is 4"),
    "three bits": (parts.gptq_scheme(Kind()) | {"bits": 3}, "bits is 3: 4 and 8 are read"),
    "bits as text": (parts.gptq_scheme(Kind()) | {"bits": "4"}, "bits is '4'"),
    "no bits": ({"quant_method": "gptq"}, "bits is missing"),
    "a group of nothing": (parts.gptq_scheme(Kind()) | {"group_size": 0}, "group_size is 0"),
    "a group below -1": (parts.gptq_scheme(Kind()) | {"group_size": -2}, "group_size is -2"),
    "marlin": (parts.gptq_scheme(Kind(), checkpoint_format="marlin"), "checkpoint_format is 'marlin'"),
    "marlin of AutoGPTQ": (parts.gptq_scheme(Kind(), is_marlin_format=True), "is_marlin_format is set"),
    "words of 16 bits": (parts.gptq_scheme(Kind(), pack_dtype="int16"), "pack_dtype is 'int16'"),
    "an override of 2 bits": (parts.gptq_scheme(Kind(), dynamic={"+:.*up.*": {"bits": 2}}), "bits is 2"),
    "gemv": (parts.awq_scheme(Kind(), version="gemv"), "version is 'gemv'"),
    "awq in 8 bits": (parts.awq_scheme(Kind(bits=8)), "bits is not 4"),
    "marlin-24": (parts.compressed_scheme(Kind(), "marlin-24"), "format is 'marlin-24'"),
    "nvfp4": (parts.compressed_scheme(Kind(), "nvfp4-pack-quantized"), "nvfp4-pack-quantized"),
    "fp4": (parts.compressed_scheme(Kind(), type="float"), "num_bits is 4, of type 'float'"),
    "six bits": (parts.compressed_scheme(Kind(), num_bits=6), "num_bits is 6"),
    "by tokens": (parts.compressed_scheme(Kind(), strategy="token"), "strategy is 'token'"),
    "blocks of nothing": (parts.compressed_scheme(Kind(), strategy="block", block_structure=[0, 4]), "two sizes"),
    "an order of its own": (parts.compressed_scheme(Kind(), actorder="mine"), "actorder is 'mine'"),
    "rotations": (
        parts.compressed_scheme(Kind()) | {"transform_config": {"config_groups": {"R1": {}}}}, "transform_config is set"
    ),
    "sparsity": (
        parts.compressed_scheme(Kind()) | {"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparsity_config is set"
    ),
    "groups as a list": ({"quant_method": "compressed-tensors", "config_groups": []}, "config_groups"),
    "another packing": (parts.auto_round_scheme(Kind(), "auto_round:llm_compressor"), "packing_format is"),
    "activations": (parts.auto_round_scheme(Kind(), "auto_round", act_bits=8), "act_bits is 8"),
    "mx_fp": (parts.auto_round_scheme(Kind(), "auto_round", data_type="mx_fp"), "data_type is 'mx_fp'"),
    "e5m2": ({"quant_method": "fp8", "fmt": "e5m2"}, "fmt is 'e5m2'"),
    "not a mapping": ([], "quantization_config is"),  # type: ignore[dict-item]
}  # fmt: skip


@pytest.mark.parametrize("case", SCHEMES)
def test_an_unsupported_scheme_is_refused_by_name(case: str) -> None:
    said, text = SCHEMES[case]
    with pytest.raises(ModelError, match=text.replace("(", r"\(")) as caught:
        scheme.read({"quantization_config": said}, SOURCE)
    assert caught.value.remedy and caught.value.what == "config.json"


def test_a_scheme_is_found_in_all_of_its_places() -> None:
    said = parts.gptq_scheme(Kind(), dynamic={"-:.*0.*": {}, "+:.*up.*": {"bits": 8, "group_size": -1}})
    found = scheme.read({"quantization_config": said}, SOURCE)
    assert found is not None and [(way.bits, way.group) for way in found.ways] == [(4, 64), (8, 0)]
    assert scheme.read({"text_config": {"quantization_config": said}}, SOURCE) == found
    assert scheme.read({"compression_config": parts.compressed_scheme(Kind())}, SOURCE) is not None
    assert scheme.read({"hidden_size": 4, "quantization_config": None}, SOURCE) is None
    early = {"quant_method": "intel/auto-round", "backend": "auto_round:gptq:exllamav2", "bits": 4, "group_size": 128}
    made = scheme.read({"quantization_config": early}, SOURCE)
    assert made is not None and (made.words, made.zero_offset) == ("gptq", 1)
    exported = scheme.read({"quantization_config": early | {"backend": "auto_round:exllamav2"}}, SOURCE)
    assert exported is not None and exported.zero_offset == 0
    old = {"quant_method": "awq", "w_bit": 4, "q_group_size": 64, "version": "GEMM", "zero_point": True}
    assert scheme.read({"quantization_config": old}, SOURCE) == scheme.Scheme("AWQ", (scheme.Way(4, 64),), "awq")


def test_an_unsupported_scheme_is_refused_before_weights_exist(tmp_path: Path) -> None:
    directory = write(tmp_path / "m", GPTQ, lambda tensors: None)
    (directory / "model.safetensors").unlink()
    assert read_config(directory).hidden == 128
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": {"quant_method": "hqq"}}))
    with pytest.raises(ModelError, match="'hqq'"):
        read_config(directory)


def damaged(header: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """Change a few things of a header: types, shapes, offsets, names."""
    made: dict[str, Any] = json.loads(json.dumps(header))
    names = [name for name in made if name != "__metadata__"]
    for _ in range(rng.choice((1, 1, 2, 4))):
        name = rng.choice(names)
        if name not in made:
            continue
        entry = made[name]
        kind = rng.randrange(6)
        if kind == 0:
            entry["dtype"] = rng.choice(["F16", "BF16", "F32", "I8", "U8", "I32", "I64", "F8_E4M3", "F8_E5M2", "F4"])
        elif kind == 1 and entry["shape"]:
            place = rng.randrange(len(entry["shape"]))
            entry["shape"][place] = rng.choice([0, 1, 2, 3, entry["shape"][place] * 2, entry["shape"][place] // 2])
        elif kind == 2:
            entry["shape"] = entry["shape"][::-1] if rng.random() < 0.5 else [*entry["shape"], 1]
        elif kind == 3:
            other = rng.choice(names)
            if other in made:
                made[name], made[other] = made[other], made[name]
        elif kind == 4:
            del made[name]
        else:
            made[rng.choice(names).rpartition(".")[0] + "." + name.rpartition(".")[2]] = made.pop(name)
    return made


def typed(header: dict[str, Any]) -> dict[str, Any]:
    """Give every tensor as many bytes as its type and shape say, so that the reader of files lets it pass."""
    sizes = {"F16": 2, "BF16": 2, "F32": 4, "I8": 1, "U8": 1, "I32": 4, "I64": 8, "F8_E4M3": 1, "F8_E5M2": 1, "F4": 1}
    position, made = 0, {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        nbytes = int(np.prod(entry["shape"], dtype=np.int64)) * sizes[entry["dtype"]]
        shape = [*entry["shape"], 2] if entry["dtype"] == "F4" else entry["shape"]
        made[name] = {"dtype": entry["dtype"], "shape": shape, "data_offsets": [position, position + nbytes]}
        position += nbytes
    return made


def fuzz(directory: Path, method: str, count: int) -> tuple[int, int]:
    """Damage headers, configurations and data of a sound checkpoint; return how many were read, and how many not."""
    source = write(directory, method, lambda tensors: None)
    path, config = source / "model.safetensors", source / "config.json"
    said = json.loads(config.read_text())
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + length])
    rng, models, errors = random.Random(7), 0, 0
    for _ in range(count):
        made = typed(damaged(header, rng))
        text = json.dumps(made).encode()
        size = max((entry["data_offsets"][1] for entry in made.values()), default=0)
        body = (data[8 + length :] * (size // (len(data) - 8 - length) + 1))[:size]
        path.write_bytes(struct.pack("<Q", len(text)) + text + body)
        if rng.random() < 0.3:
            scheme_said = dict(said["quantization_config"])
            key = rng.choice(list(scheme_said))
            scheme_said[key] = rng.choice([None, -1, 0, 3, 8, 1 << 70, "", "gptq", [], {}, True, 0.5, {"a": {"b": 1}}])
            config.write_text(json.dumps(said | {"quantization_config": scheme_said}))
        else:
            config.write_text(json.dumps(said))
        try:
            read(source)
            models += 1
        except InfengError as error:
            assert str(error).isprintable()
            errors += 1
    return models, errors


@pytest.mark.parametrize("method", [GPTQ, AWQ, PACKED, BYTES, FP8])
def test_any_damage_is_an_infeng_error(tmp_path: Path, method: str) -> None:
    _, errors = fuzz(tmp_path / "m", method, 12)
    assert errors > 4


@pytest.mark.slow
@pytest.mark.parametrize("method", [GPTQ, AWQ, PACKED, BYTES, FP8])
def test_many_random_damages_are_only_infeng_errors(tmp_path: Path, method: str) -> None:
    _, errors = fuzz(tmp_path / "m", method, 200)
    assert errors > 100
