"""Models in GGUF: written with the format's own library as llama.cpp's exporter does, read as the model they were."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import gguf_writing
import numpy as np
import pytest
import tiny_model
from e2e import harness
from gguf_calls import find, load
from gguf_writing import interleaved
from infeng_gguf.checkpoint import GgufCheckpoint
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file
from tiny_model import Shape

from infeng_core.engine import Engine
from infeng_core.errors import InfengError, ModelError
from infeng_core.formats.format_choice import BASE, FormatChoice, choose
from infeng_core.formats.quant import builtin_format
from infeng_core.formats.tensors import LoadedModel
from infeng_core.plug.assembly import load_config
from infeng_core.requests.defaults import recommended
from infeng_core.requests.request import SamplingParams

SHAPE = Shape(hidden=64, intermediate=256, heads=4, kv_heads=2, tie=False)
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}  # fmt: skip
Floats = NDArray[np.float32]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model.write(tmp_path_factory.mktemp("source"), SHAPE)


def name_of(name: str) -> str:
    """Return llama.cpp's name of a tensor, from its own table."""
    table = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 8)
    found = table.get_name(name, try_suffixes=(".weight", ".bias"))
    assert found is not None
    return str(found)


def write(
    path: Path,
    source: Path,
    types: Callable[[str], str] = lambda name: "F32",
    *,
    arch: str = "llama",
    change: Callable[[gguf.GGUFWriter], None] = lambda writer: None,
    drop: tuple[str, ...] = (),
    keys: Mapping[str, Any] | None = None,
    stored: Callable[[Floats, gguf.GGMLQuantizationType], NDArray[Any]] = gguf.quantize,
) -> Path:
    """Write the model ``source`` with the format's own library; ``types``: of a matrix by its name there.

    stored: the blocks of a tensor.
    """
    config = json.loads((source / "config.json").read_text())
    tokenizer = json.loads((source / "tokenizer.json").read_text())
    writer = gguf.GGUFWriter(str(path), arch)
    values = {**gguf_writing.numbers(config), **(keys or {})}
    gguf_writing.add_keys(writer, {key: value for key, value in values.items() if key not in drop})
    gguf_writing.add_vocabulary(writer, tokenizer)
    writer.add_bos_token_id(tiny_model.BOS)
    writer.add_eos_token_id(tiny_model.EOS)
    writer.add_add_bos_token(True)
    change(writer)
    for name, values in load_file(source / "model.safetensors").items():
        theirs = name_of(name)
        if theirs in drop:
            continue
        heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
        head = heads.get(name.split(".")[-2])
        if head is not None and arch == "llama":
            values = interleaved(values, head)
        kind = gguf.GGMLQuantizationType["F32" if values.ndim == 1 else types(theirs)]
        writer.add_tensor(theirs, stored(values, kind), raw_dtype=kind)
    gguf_writing.finish(writer)
    return path


def loaded(path: Path, **settings: Any) -> LoadedModel:
    config = load_config(None, overrides={name.replace("__", "."): value for name, value in settings.items()})
    return load(path, config, progress=False)


def same(one: LoadedModel, other: LoadedModel) -> bool:
    tensors = all(
        np.array_equal(one.tensors[name].dequantize(), other.tensors[name].dequantize()) for name in one.tensors
    )
    return tensors and all(np.array_equal(one.vectors[name], other.vectors[name]) for name in one.vectors)


NIGHTLY = pytest.mark.nightly


@pytest.mark.parametrize(
    ("kind", "format"),
    [
        ("F32", "f32"),
        ("F16", "int4-g64"),
        pytest.param("F16", "f32", marks=NIGHTLY),
        pytest.param("BF16", "bf16", marks=NIGHTLY),
    ],
)
def test_float_tensors_equal_the_exported_model(tmp_path: Path, source: Path, kind: str, format: str) -> None:
    if kind == "F32":
        plain = source
    else:  # the same weights, rounded first
        plain = tiny_model.write(tmp_path / "rounded", SHAPE)
        to = gguf.GGMLQuantizationType[kind]
        weights = load_file(source / "model.safetensors")
        rounded = {name: gguf.dequantize(gguf.quantize(values, to), to) for name, values in weights.items()}
        vectors = {name: values for name, values in weights.items() if values.ndim == 1}
        save_file(rounded | vectors, plain / "model.safetensors")
    model = loaded(write(tmp_path / "m.gguf", source, lambda name: kind), model__format=format)
    wanted = loaded(plain, model__format=format)
    assert model.config == wanted.config and model.formats_used == wanted.formats_used
    assert same(model, wanted)


@pytest.mark.slow
def test_a_text_gets_the_answer_of_the_model_directory(tmp_path: Path, source: Path) -> None:
    path = write(tmp_path / "m.gguf", source, change=lambda writer: writer.add_chat_template("{{ messages }}"))
    answers = []
    for model in (source, path):
        with Engine(model, overrides={"model.format": "f32", "threads.count": 1}) as engine:
            answers += engine.generate(["the quick"], SamplingParams(temperature=0.0, max_tokens=12))
            directory = engine.model.tokenizer_dir
    assert answers[0].text == answers[1].text and answers[0].token_ids == answers[1].token_ids
    assert json.loads((directory / "tokenizer_config.json").read_text())["chat_template"] == "{{ messages }}"


def extreme(values: Floats, kind: gguf.GGMLQuantizationType) -> NDArray[Any]:
    """Return the blocks of a matrix; Q8_0 with a code, and MXFP4 with scales, that quantizers seldom write."""
    raw = gguf.quantize(values, kind)
    if kind.name == "Q8_0":
        raw[1, 2] = 0x80  # -128
    if kind.name == "MXFP4":
        raw[1, 0], raw[2, 0] = 128 - 24, 128 + 15  # the exponents of the least and the largest scale of fp16
        raw[3, 0], raw[3, 1:17] = 0, 0  # zeros, under 2^-128
    return raw


@pytest.mark.parametrize(
    ("kind", "format"), [("Q4_0", "int4-g32"), ("Q8_0", "int8-g32"), ("Q5_0", "int8-g32"), ("MXFP4", "int8-g32")]
)
def test_integers_with_one_scale_are_kept_unchanged(tmp_path: Path, source: Path, kind: str, format: str) -> None:
    path = write(tmp_path / "m.gguf", source, lambda name: kind, stored=extreme)
    checkpoint = GgufCheckpoint(path)
    used = checkpoint.formats(FormatChoice("int4-g64", {}, frozenset({BASE})), builtin_format)
    assert set(used.values()) == {format} and checkpoint.changes(used) == {}
    model, to = loaded(path), gguf.GGMLQuantizationType[kind]
    assert set(model.formats_used.values()) == {format}
    for name, values in load_file(source / "model.safetensors").items():
        if values.ndim == 2 and "q_proj" not in name and "k_proj" not in name:  # whose first rows are others there
            assert np.array_equal(model.matrix(name), gguf.dequantize(extreme(values, to), to)), name
        elif values.ndim == 2:
            heads = SHAPE.heads if "q_proj" in name else SHAPE.kv_heads
            there = gguf.dequantize(extreme(interleaved(values, heads), to), to)
            assert np.array_equal(interleaved(model.matrix(name), heads), there), name


def any_blocks(values: Floats, kind: gguf.GGMLQuantizationType) -> NDArray[Any]:
    """Return blocks of a type that the library only reads: any codes, under scales that weights have.

    Of Q4_K also the least scales of fp16, and such below zero.
    """
    try:
        return gguf.quantize(values, kind)
    except NotImplementedError:
        block, nbytes = gguf.GGML_QUANT_SIZES[kind]
        raw = np.random.default_rng(values.size).integers(0, 256, (values.size // block, nbytes), np.uint8)
        for at in {"Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}[kind.name]:
            raw[:, at : at + 2] = np.array([0.001], np.float16).view(np.uint8)
        if kind.name == "Q4_K":
            raw[1::5, :2], raw[2::5, 2:4] = [1, 0], [3, 0]
            raw[3::5, 1], raw[4::5, 3] = raw[3::5, 1] | 128, raw[4::5, 3] | 128
        return raw.reshape(len(values), -1)


@pytest.mark.parametrize("kind", ["Q5_1", "Q6_K", *(pytest.param(kind, marks=NIGHTLY) for kind in ("Q4_1", "Q5_K"))])
def test_requantized_types_are_reported(tmp_path: Path, kind: str) -> None:
    source = tiny_model.write(
        tmp_path / "source", Shape(hidden=256, intermediate=256, layers=1, head_dim=64, tie=False)
    )
    path = write(tmp_path / "m.gguf", source, lambda name: kind, stored=any_blocks)
    checkpoint = GgufCheckpoint(path)
    to = gguf.GGMLQuantizationType[kind]
    weights = load_file(source / "model.safetensors")
    formats = checkpoint.formats(FormatChoice("int4-g64", {}, frozenset({BASE})), builtin_format)
    assert set(formats.values()) == {"int8-g32"}
    assert checkpoint.changes(formats) == {f"{kind} -> int8-g32": "9 tensors"}
    model = loaded(path)
    for name in ("model.layers.0.mlp.down_proj.weight", "lm_head.weight"):
        exact = gguf.dequantize(any_blocks(weights[name], to), to)
        groups = np.abs(exact).reshape(len(exact), -1, 32).max(axis=2).repeat(32, axis=1)
        assert (np.abs(model.matrix(name) - exact) <= groups / 127 * 0.57).all()  # a half, and what fp16 does to scales


WIDE = Shape(hidden=256, intermediate=512, heads=4, kv_heads=2, layers=1, head_dim=64, tie=False)  # whole blocks


def test_sub_scales_and_minima_are_kept_unchanged(tmp_path: Path) -> None:
    source = tiny_model.write(tmp_path / "source", WIDE)
    checkpoint = GgufCheckpoint(write(tmp_path / "m.gguf", source, lambda name: "Q4_K", stored=any_blocks))
    used = checkpoint.formats(FormatChoice("int4-g64", {}, frozenset({BASE})), builtin_format)
    assert set(used.values()) == {"int4-a256"} and checkpoint.changes(used) == {}
    halves = {"model__format": "int4-a128", "model__formats": {"embed": "int4-a128"}}
    to = gguf.GGMLQuantizationType["Q4_K"]
    for format, settings in (("int4-a256", {}), ("int4-a128", halves)):  # whose superblocks are halves of a block
        model = loaded(tmp_path / "m.gguf", **settings)
        assert set(model.formats_used.values()) == {format}
        for name, values in load_file(source / "model.safetensors").items():
            if values.ndim == 1:
                continue
            heads = {"q_proj": WIDE.heads, "k_proj": WIDE.kv_heads}.get(name.split(".")[-2])
            there = gguf.dequantize(any_blocks(interleaved(values, heads) if heads else values, to), to)
            ours = model.matrix(name)
            assert np.array_equal(interleaved(ours, heads) if heads else ours, there), name


@pytest.mark.slow
def test_logits_over_minima_equal_those_of_the_dequantized_weights(tmp_path: Path) -> None:
    """The backend in NumPy multiplies dequantized weights in binary64 by activations that are rounded as ours are.

    Most rows agree to the last digits of binary32, but for those that an activation on the edge of two integers
    reaches; in one of these prompts there is none among the first.
    """
    pytest.importorskip("infeng_numpy")
    path = write(
        tmp_path / "m.gguf", tiny_model.write(tmp_path / "source", WIDE), lambda name: "Q4_K", stored=any_blocks
    )
    prompts, found = np.random.default_rng(0).integers(2, 300, (4, 30)), []
    for backend in ("native", "numpy"):
        with harness.engine(path, {"kv_cache.dtype": "f32", "backend.use": backend}) as engine:
            assert set(engine.model.formats_used.values()) == {"int4-a256"}
            found.append(np.stack([harness.logits(engine, prompt, range(30)) for prompt in prompts]))
    rows = np.abs(found[0] - found[1]).max(axis=2) / np.abs(found[1]).max()  # (prompts, rows)
    assert rows.max() < 0.05 and np.median(rows, axis=1).min() < 5e-6


def test_tensors_without_valid_minima_are_kept_in_eight_bits(tmp_path: Path) -> None:
    source = tiny_model.write(tmp_path / "source", WIDE)
    mixed = {"attn_v": "Q6_K", "ffn_down": "Q6_K"}  # as in half of the layers of a Q4_K_M
    types = lambda name: mixed.get(name.split(".")[-2], "Q4_K")  # noqa: E731
    checkpoint = GgufCheckpoint(write(tmp_path / "m.gguf", source, types, stored=any_blocks))
    used = checkpoint.formats(FormatChoice("int4-g64", {}, frozenset({BASE})), builtin_format)
    eight = {"layers.0.qkv_proj", "layers.0.down_proj"}
    assert used == {name: "int8-g32" if name in eight else "int4-a256" for name in used}
    assert checkpoint.changes(used) == {"Q4_K -> int8-g32": "2 tensors", "Q6_K -> int8-g32": "2 tensors"}


def test_a_scale_of_minima_that_is_not_finite_is_named(tmp_path: Path) -> None:
    def damaged(values: Floats, kind: gguf.GGMLQuantizationType) -> NDArray[Any]:
        raw = any_blocks(values, kind)
        if values.shape == (WIDE.hidden, WIDE.intermediate):
            raw[7, 144 + 2 : 144 + 4] = [0, 0x7C]  # the second block of row 7: infinity
        return raw

    source = tiny_model.write(tmp_path / "source", WIDE)
    path = write(tmp_path / "m.gguf", source, lambda name: "Q4_K", stored=damaged)
    with pytest.raises(ModelError, match=r"ffn_down.weight.* holds .*(inf|nan) at row 7, column 256"):
        loaded(path)


def test_a_joined_tensor_takes_a_format_that_suits_all_of_its_parts(tmp_path: Path, source: Path) -> None:
    mixed = {"attn_v": "Q5_1", "ffn_up": "Q8_0", "token_embd": "F16"}
    path = write(tmp_path / "m.gguf", source, lambda name: mixed.get(name.split(".")[-2], "Q4_0"))
    model, said = loaded(path), GgufCheckpoint(path).changes
    formats = model.formats_used
    assert formats["layers.0.qkv_proj"] == "int8-g32" and formats["layers.0.o_proj"] == "int4-g32"
    assert formats["layers.0.gate_up_proj"] == formats["embed"] == "int8-g32"
    assert said(formats) == {"Q5_1 -> int8-g32": "2 tensors", "F16 -> int8-g32": "1 tensor"}
    values, q4 = load_file(source / "model.safetensors"), gguf.GGMLQuantizationType.Q4_0
    for name in ("model.layers.0.mlp.gate_proj.weight", "model.layers.1.self_attn.q_proj.weight"):
        assert np.array_equal(model.matrix(name), gguf.dequantize(gguf.quantize(values[name], q4), q4))


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16"])
def test_floats_keep_at_least_the_precision_of_the_quantized_tensors_beside_them(
    tmp_path: Path, source: Path, kind: str
) -> None:
    left = {"token_embd": kind, "attn_q": kind, "attn_output": kind, "ffn_down": kind}
    path = write(tmp_path / "m.gguf", source, lambda name: left.get(name.split(".")[-2], "Q8_0"))
    model = loaded(path)
    assert set(model.formats_used.values()) == {"int8-g32"}
    changes = GgufCheckpoint(path).changes(model.formats_used)
    assert changes == {f"{kind} -> int8-g32": f"{1 + 3 * SHAPE.layers} tensors"}
    for name, values in load_file(source / "model.safetensors").items():
        if values.ndim == 2:  # no step is wider than that of Q8_0
            steps = np.abs(values).reshape(len(values), -1, 32).max(axis=2).repeat(32, axis=1) / 127
            assert (np.abs(model.matrix(name) - values) <= 0.62 * steps + np.abs(values) / 256).all(), name


def test_a_file_of_floats_alone_follows_the_settings(tmp_path: Path, source: Path) -> None:
    used = loaded(write(tmp_path / "m.gguf", source, lambda name: "F16")).formats_used
    assert (used.pop("embed"), set(used.values())) == ("int8-row", {"int4-p32-arow-h256"})


def test_requested_formats_override_the_files_types(tmp_path: Path, source: Path) -> None:
    checkpoint = GgufCheckpoint(write(tmp_path / "m.gguf", source, lambda name: "Q4_0"))

    def formats(**asked: Any) -> dict[str, str]:
        config = load_config(None, overrides={f"model.{name}": value for name, value in asked.items()})
        return checkpoint.formats(choose(config, builtin_format), builtin_format)

    assert set(formats(format="f32").values()) == {"f32"}
    asked = formats(format="int4-g64")
    assert (asked["embed"], asked["lm_head"]) == ("int8-row", "int4-g64")
    only = formats(formats={"*.down_proj": "bf16"})
    assert (only["layers.0.down_proj"], only["layers.0.o_proj"]) == ("bf16", "int4-g32")


def test_a_conversion_is_cached_until_the_file_changes(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"  # its own: the entries of the other one are those of every process of this run
    monkeypatch.setenv("INFENG_CACHE", str(cache))
    path = write(tmp_path / "m.gguf", source)
    one = loaded(path, model__format="f32")
    before = set((cache / "models").iterdir())
    assert loaded(path, model__format="f32").id == one.id and set((cache / "models").iterdir()) == before
    other = write(tmp_path / "other.gguf", tiny_model.write(tmp_path / "x", Shape(**{**vars(SHAPE), "seed": 3})))
    other.rename(path)
    assert loaded(path, model__format="f32").id != one.id


def test_tied_heads_have_no_tensor(tmp_path: Path, source: Path) -> None:
    checkpoint = GgufCheckpoint(write(tmp_path / "m.gguf", source, drop=("output.weight",)))
    assert checkpoint.config.tie_embeddings and "lm_head" not in {spec.name for spec in checkpoint.layout.tensors}


def test_qwen2_has_biases_and_rows_without_interleaving(tmp_path: Path) -> None:
    extra = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "mlp_bias": False}
    source = tiny_model.write(tmp_path / "qwen", Shape(hidden=64, intermediate=256, bias=True, extra=extra))
    weights = load_file(source / "model.safetensors")
    biased = ("q_proj", "k_proj", "v_proj")
    kept = {name: values for name, values in weights.items() if "bias" not in name or name.split(".")[-2] in biased}
    save_file(kept, source / "model.safetensors")
    path = write(tmp_path / "m.gguf", source, arch="qwen2")
    model, wanted = loaded(path, model__format="f32"), loaded(source, model__format="f32")
    assert model.config.family == "qwen2" and same(model, wanted)


def factors(rope: Mapping[str, Any], width: int, theta: float = 10000.0) -> Floats:
    """Compute the divisors as ``LlamaModel.generate_extra_tensors`` of convert_hf_to_gguf.py."""
    found = []
    for place in range(0, width, 2):
        wavelength = 2 * math.pi * theta ** (place / width)
        low = rope["original_max_position_embeddings"] / rope["low_freq_factor"]
        high = rope["original_max_position_embeddings"] / rope["high_freq_factor"]
        smooth = (rope["original_max_position_embeddings"] / wavelength - rope["low_freq_factor"]) / (
            rope["high_freq_factor"] - rope["low_freq_factor"]
        )
        blend = 1 / ((1 - smooth) / rope["factor"] + smooth)
        found.append(1.0 if wavelength < high else rope["factor"] if wavelength > low else blend)
    return np.array(found, np.float32)


@pytest.mark.parametrize("original", [64, 8192])
def test_rope_scaling_of_llama_3_is_recovered_from_its_divisors(tmp_path: Path, source: Path, original: int) -> None:
    rope = LLAMA3 | {"original_max_position_embeddings": original}
    values = factors(rope, SHAPE.head_dim)
    path = write(tmp_path / "m.gguf", source, change=lambda writer: writer.add_tensor("rope_freqs.weight", values))
    found = GgufCheckpoint(path).config.rope
    assert (found.kind, found.factor, found.original_max_positions) == ("llama3", 8.0, original)


def test_other_divisors_are_refused(tmp_path: Path, source: Path) -> None:
    values = np.linspace(1, 3, SHAPE.head_dim // 2, dtype=np.float32)
    path = write(tmp_path / "m.gguf", source, change=lambda writer: writer.add_tensor("rope_freqs.weight", values))
    with pytest.raises(ModelError, match=r"rope_freqs\.weight"):
        GgufCheckpoint(path)


def test_linear_scaling_is_read(tmp_path: Path, source: Path) -> None:
    def change(writer: gguf.GGUFWriter) -> None:
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(4.0)

    rope = GgufCheckpoint(write(tmp_path / "m.gguf", source, change=change)).config.rope
    assert (rope.kind, rope.factor) == ("linear", 4.0)


def test_recommended_sampling_in_the_metadata_is_the_default(tmp_path: Path, source: Path) -> None:
    def change(writer: gguf.GGUFWriter) -> None:
        writer.add_float32("general.sampling.temp", 0.6)
        writer.add_int32("general.sampling.top_k", 20)
        writer.add_eot_token_id(5)

    path = write(tmp_path / "m.gguf", source, change=change)
    checkpoint = GgufCheckpoint(path)
    assert checkpoint.config.eos_ids == (tiny_model.EOS, 5)
    (tmp_path / "generation_config.json").write_bytes(checkpoint.side_files()["generation_config.json"])
    assert recommended(tmp_path) == {"temperature": 0.6, "top_k": 20}


def test_a_split_model_is_read_as_one(tmp_path: Path, source: Path) -> None:
    whole = loaded(write(tmp_path / "m.gguf", source), model__format="f32")
    reader = gguf.GGUFReader(tmp_path / "m.gguf")
    tensors = reader.tensors
    for number, some in enumerate((tensors[:5], tensors[5:])):

        def change(writer: gguf.GGUFWriter, number: int = number) -> None:
            writer.add_uint16("split.no", number)
            writer.add_uint16("split.count", 2)
            writer.add_int32("split.tensors.count", len(tensors))

        write(
            tmp_path / f"s-0000{number + 1}-of-00002.gguf",
            source,
            change=change,
            drop=tuple(tensor.name for tensor in tensors if tensor not in some),
        )
    assert same(loaded(tmp_path / "s-00001-of-00002.gguf", model__format="f32"), whole)


BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "another architecture": ({"arch": "mamba"}, "general.architecture is 'mamba'"),
    "an adapter": ({"change": lambda writer: writer.add_type("adapter")}, "--lora"),
    "experts": ({"keys": {"expert_count": 8}}, "llama.expert_used_count is missing"),
    "a key that nobody knows": ({"keys": {"brand_new": 1}}, "llama.brand_new"),
    "a missing key": ({"drop": ("block_count",)}, "llama.block_count is missing"),
    "more layers than there are": ({"keys": {"block_count": 3}}, r"blk\.2\."),
    "fewer layers than there are": ({"keys": {"block_count": 1}}, r"blk\.1\..*no place"),
    "a missing tensor": ({"drop": ("blk.1.ffn_up.weight",)}, r"blk\.1\.ffn_up\.weight"),
    "another width": ({"keys": {"feed_forward_length": 128}}, "the metadata says"),
    "no embedding": ({"drop": ("token_embd.weight",)}, r"token_embd\.weight is missing"),
    "a layer count of a billion": ({"keys": {"block_count": 1 << 30}}, "num_hidden_layers"),
    "heads that do not divide": ({"keys": {"attention.head_count": 3}}, "head"),
    "values wider than keys": ({"keys": {"attention.value_length": 32}}, "value_length"),
    "windows": ({"keys": {"attention.sliding_window": 8}}, "sliding_window"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_and_unsupported_files_are_refused_by_name(tmp_path: Path, source: Path, name: str) -> None:
    changes, why = BROKEN[name]
    path = write(tmp_path / "m.gguf", source, **changes)
    with pytest.raises(ModelError, match=why) as caught:
        GgufCheckpoint(path)
    assert "m.gguf" in str(caught.value) and caught.value.remedy


def test_an_unsupported_type_is_refused_by_name(tmp_path: Path) -> None:
    source = tiny_model.write(tmp_path / "source", Shape(hidden=256, intermediate=256, layers=1, head_dim=64))
    with pytest.raises(ModelError, match="is TQ2_0, which is not read"):
        GgufCheckpoint(write(tmp_path / "m.gguf", source, lambda name: "TQ2_0"))


def test_nan_is_reported_with_its_place(tmp_path: Path) -> None:
    source = tiny_model.write(tmp_path / "source", SHAPE)
    weights = load_file(source / "model.safetensors")
    weights["model.layers.0.mlp.up_proj.weight"][5, 6] = np.nan
    save_file(weights, source / "model.safetensors")
    with pytest.raises(ModelError, match=r"blk\.0\.ffn_up\.weight.*row 5, column 6"):
        loaded(write(tmp_path / "m.gguf", source), model__format="f32")


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0"])
def test_a_scale_that_is_not_finite_is_reported_with_its_place(tmp_path: Path, source: Path, kind: str) -> None:
    def stored(values: Floats, to: gguf.GGMLQuantizationType) -> NDArray[Any]:
        raw = gguf.quantize(values, to)
        if len(values) == SHAPE.intermediate:
            raw[5, :2] = np.array([np.inf], np.float16).view(np.uint8)
        return raw

    path = write(tmp_path / "m.gguf", source, lambda name: kind, stored=stored)
    with pytest.raises(ModelError, match=r"blk\.0\.ffn_gate\.weight.*row 5, column 0"):
        loaded(path)


def test_the_error_of_a_folder_of_gguf_files_names_them(tmp_path: Path, source: Path) -> None:
    write(tmp_path / "m.gguf", source)
    with pytest.raises(InfengError, match=r"give .*m\.gguf"):
        loaded(tmp_path)
    assert find(tmp_path / "m.gguf") == tmp_path / "m.gguf"


def test_a_file_named_gguf_without_its_magic_is_refused(tmp_path: Path) -> None:
    directory = tiny_model.write(tmp_path / "model")
    file = (directory / "model.safetensors").rename(directory / "model-q4_0.gguf")
    for place, words in ((directory, f"give {file}"), (file, "does not begin with GGUF")):
        with pytest.raises(ModelError, match=words):
            load(place, load_config(None))
