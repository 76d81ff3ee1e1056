"""Models written as GGUF are what they were, to us and to the format's own library."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import gguf_writing
import numpy as np
import pytest
import tiny_model
from gguf_calls import export_gguf, load
from infeng_gguf.file import GgufFile
from infeng_gguf.tokenizer import GgufTokenizer
from safetensors.numpy import load_file, save_file
from tiny_model import Shape
from tokenizers import Tokenizer

from infeng_core.cli import main
from infeng_core.errors import ModelError, UsageError
from infeng_core.formats.conversion import convert
from infeng_core.formats.format_choice import FormatChoice
from infeng_core.formats.tensors import LoadedModel
from infeng_core.plug.assembly import load_config

SHAPE = Shape(hidden=64, intermediate=256, tie=False)
ROPE = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
ROPE |= {"original_max_position_embeddings": 64}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shape = Shape(hidden=64, intermediate=256, tie=False, extra={"rope_scaling": ROPE})
    directory = tiny_model.write(tmp_path_factory.mktemp("source"), shape)
    settings = json.loads((directory / "tokenizer_config.json").read_text())
    (directory / "tokenizer_config.json").write_text(json.dumps(settings | {"chat_template": "{{ messages }}"}))
    return directory


def loaded(path: Path, format: str | None = "f32") -> LoadedModel:
    return load(path, load_config(None, overrides={} if format is None else {"model.format": format}), progress=False)


def test_floats_come_back_as_they_were(tmp_path: Path, source: Path) -> None:
    made = export_gguf(source, tmp_path / "m.gguf", "f32", progress=False)
    model, wanted = loaded(made.path), loaded(source)
    assert model.config == wanted.config
    for name, tensor in wanted.tensors.items():
        assert np.array_equal(model.tensors[name].dequantize(), tensor.dequantize()), name
    for name, vector in wanted.vectors.items():
        assert np.array_equal(model.vectors[name], vector), name


@pytest.mark.parametrize(("format", "kind"), [("f16", "F16"), ("q8_0", "Q8_0"), ("q4_0", "Q4_0")])
def test_the_formats_own_library_reads_names_rows_and_values(
    tmp_path: Path, source: Path, format: str, kind: str
) -> None:
    export_gguf(source, tmp_path / "m.gguf", format, progress=False)
    reader = gguf.GGUFReader(tmp_path / "m.gguf")
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    table = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 2)
    weights = load_file(source / "model.safetensors")
    assert len(tensors) == len(weights) + 1  # with the divisors of the frequencies
    for name, values in weights.items():
        found = tensors[table.get_name(name, try_suffixes=(".weight",))]
        ends = values.ndim == 2 and format == "q4_0" and "layers" not in name
        to = gguf.GGMLQuantizationType["F32" if values.ndim == 1 else "Q8_0" if ends else kind]
        assert found.tensor_type == to
        heads = 4 if "q_proj" in name else 2 if "k_proj" in name else 0
        if heads:
            values = gguf_writing.interleaved(values, heads)
        assert np.array_equal(gguf.dequantize(found.data, to), gguf.dequantize(gguf.quantize(values, to), to)), name
    fields = {name: field.contents() for name, field in reader.fields.items()}
    assert fields["general.architecture"] == "llama" and fields["llama.attention.head_count_kv"] == 2
    assert fields["tokenizer.chat_template"] == "{{ messages }}" and fields["tokenizer.ggml.add_bos_token"] is True
    assert len(fields["tokenizer.ggml.tokens"]) == tiny_model.VOCAB
    assert tensors["rope_freqs.weight"].data.max() == 8.0


def test_q4_0_is_the_same_model_after_the_way_there_and_back(tmp_path: Path, source: Path) -> None:
    export_gguf(source, tmp_path / "m.gguf", "q4_0", progress=False)
    model = loaded(tmp_path / "m.gguf", None)
    assert {model.formats_used["layers.0.qkv_proj"], model.formats_used["layers.1.down_proj"]} == {"int4-g32"}
    weights = load_file(source / "model.safetensors")
    q4 = gguf.GGMLQuantizationType.Q4_0
    for name in ("model.layers.0.self_attn.k_proj.weight", "model.layers.1.mlp.gate_proj.weight"):
        assert np.array_equal(model.matrix(name), gguf.dequantize(gguf.quantize(weights[name], q4), q4))


def test_a_gguf_can_be_written_again_in_another_type(tmp_path: Path, source: Path) -> None:
    export_gguf(source, tmp_path / "a.gguf", "f32", progress=False)
    export_gguf(source, tmp_path / "b.gguf", "q8_0", progress=False)
    export_gguf(tmp_path / "a.gguf", tmp_path / "c.gguf", "q8_0", progress=False)
    b, c = ({t.name: t.data.tobytes() for t in gguf.GGUFReader(tmp_path / f"{n}.gguf").tensors} for n in "bc")
    assert b == c


def test_integers_of_a_gguf_are_written_as_they_are(tmp_path: Path, source: Path) -> None:
    """Rounded again, the codes of Q4_0 would get other scales: an eighth of the largest value is no 127th of it."""
    export_gguf(source, tmp_path / "a.gguf", "q4_0", progress=False)
    export_gguf(tmp_path / "a.gguf", tmp_path / "b.gguf", "q8_0", progress=False)
    export_gguf(tmp_path / "a.gguf", tmp_path / "c.gguf", "q4_0", progress=False)
    a, b, c = (gguf.GGUFReader(tmp_path / f"{name}.gguf").tensors for name in "abc")
    assert [tensor.data.tobytes() for tensor in c] == [tensor.data.tobytes() for tensor in a]
    for one, other in zip(a, b, strict=True):
        values = gguf.dequantize(one.data, one.tensor_type)
        assert np.array_equal(gguf.dequantize(other.data, other.tensor_type), values), one.name
    assert {tensor.tensor_type.name for tensor in b} == {"Q8_0", "F32"}


@pytest.mark.parametrize(
    ("format", "written", "kept"),
    [("int8-g32", "q8_0", "Q8_0"), ("int4-g32", "q8_0", "Q8_0"), ("int4-g64", "q4_0", "Q4_0")],
)
def test_integers_of_a_converted_model_are_written_as_they_are(
    tmp_path: Path, source: Path, format: str, written: str, kept: str
) -> None:
    convert(source, tmp_path / "native", FormatChoice(format), progress=False)
    export_gguf(tmp_path / "native", tmp_path / "m.gguf", written, progress=False)
    native, file = loaded(tmp_path / "native", None), loaded(tmp_path / "m.gguf")
    assert file.config == native.config
    for name, tensor in native.tensors.items():
        if written == "q8_0" or name.startswith("layers"):  # in q4_0 embedding and head are Q8_0
            assert np.array_equal(file.tensors[name].dequantize(), tensor.dequantize()), name
    for name, vector in native.vectors.items():
        assert np.array_equal(file.vectors[name], vector), name
    linears = [
        t for t in gguf.GGUFReader(tmp_path / "m.gguf").tensors if t.name.startswith("blk.") and "norm" not in t.name
    ]
    assert {tensor.tensor_type.name for tensor in linears} == {kept}


def test_a_converted_model_in_another_format_is_written_by_its_values(tmp_path: Path, source: Path) -> None:
    convert(source, tmp_path / "native", FormatChoice("int4-p32", {"embed": "int8-row"}), progress=False)
    export_gguf(tmp_path / "native", tmp_path / "m.gguf", "f32", progress=False)
    native, file = loaded(tmp_path / "native", None), loaded(tmp_path / "m.gguf")
    for name, tensor in native.tensors.items():
        assert np.array_equal(file.tensors[name].dequantize(), tensor.dequantize()), name


@pytest.mark.parametrize("folder", ["stories260k", pytest.param("tokenizer-tinyllama", marks=pytest.mark.nightly)])
def test_sentencepiece_vocabularies_give_the_same_ids_after_the_way_there_and_back(
    tmp_path: Path, third_party: Path, folder: str
) -> None:
    wanted = Tokenizer.from_file(str(third_party / folder / "tokenizer.json"))
    shape = Shape(hidden=32, intermediate=32, layers=1, vocab=wanted.get_vocab_size())
    directory = tiny_model.write(tmp_path / "model", shape)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (directory / name).write_bytes((third_party / folder / name).read_bytes())
    export_gguf(directory, tmp_path / "m.gguf", "f16", progress=False)
    files = GgufTokenizer(GgufFile(tmp_path / "m.gguf")).files()
    found = Tokenizer.from_str(files["tokenizer.json"].decode())
    settings = json.loads(files["tokenizer_config.json"])
    assert (settings["bos_token"], settings["add_bos_token"]) == ("<s>", True)
    text = (third_party / "text" / "tinystories.txt").read_text()[:20000] + "  \n\n héllo 你好 🦙 </s> 3.14"
    for piece in (text, "", " ", "a"):
        ids = wanted.encode(piece, add_special_tokens=False).ids
        assert found.encode(piece).ids == ids and found.decode(ids) == wanted.decode(ids)


def test_the_command_writes_a_file_and_leaves_others_alone(
    tmp_path: Path, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "m.gguf"
    assert main(["convert", str(source), str(out), "--format", "q8_0", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["formats"]["blk.0.attn_q.weight"] == "Q8_0"
    assert main(["convert", str(source), str(out)]) == 1 and "exists already" in capsys.readouterr().err
    assert main(["convert", str(source), str(out), "--force"]) == 0
    assert main(["convert", str(out), str(tmp_path / "native")]) == 0
    assert loaded(tmp_path / "native", None).config == loaded(source).config
    out.write_text("mine")
    assert main(["convert", str(source), str(out), "--force"]) == 1 and out.read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.gguf", "native"]


def test_a_conversion_says_what_it_rounds_again(
    tmp_path: Path, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    export_gguf(source, tmp_path / "m.gguf", "q8_0", progress=False)
    arguments = ["convert", str(tmp_path / "m.gguf"), str(tmp_path / "out"), "--format", "int4-g64"]
    assert main(arguments) == 0
    assert "rounded again: Q8_0 -> int4-g64 (15 tensors)" in capsys.readouterr().out


def refused(tmp_path: Path, change: Any) -> str:
    directory = tiny_model.write(tmp_path / "model", SHAPE)
    path = directory / "tokenizer.json"
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))
    with pytest.raises(ModelError) as caught:
        export_gguf(directory, tmp_path / "m.gguf", "f16", progress=False)
    assert not (tmp_path / "m.gguf").exists()
    return str(caught.value)


def test_a_tokenizer_that_gguf_has_no_words_for_is_refused(tmp_path: Path) -> None:
    splits = {"type": "Split", "pattern": {"Regex": "x"}, "behavior": "Isolated", "invert": False}
    assert "no name in GGUF" in refused(tmp_path, lambda document: document.update(pre_tokenizer=splits))
    assert "no name in GGUF" in refused(tmp_path, lambda document: document.update(normalizer={"type": "NFKC"}))


def test_what_is_not_written_is_refused(tmp_path: Path, source: Path) -> None:
    with pytest.raises(UsageError, match="q4_k"):
        export_gguf(source, tmp_path / "m.gguf", "q4_k")
    weights = tiny_model.write(tmp_path / "large", SHAPE)
    tensors = load_file(weights / "model.safetensors")
    tensors["model.layers.0.mlp.up_proj.weight"][0, 0] = 1e6
    save_file(tensors, weights / "model.safetensors")
    with pytest.raises(ModelError, match=r"up_proj.*F16 cannot"):
        export_gguf(weights, tmp_path / "m.gguf", "f16", progress=False)
    assert not (tmp_path / "m.gguf").exists()
