"""A calibrated conversion sees the inputs that the kernels will see, is reproducible, and loses less than rounding."""

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import tiny_model
import yaml
from infeng_calibrate.forward import quantized
from infeng_calibrate.stages import stages
from infeng_calibrate.statistics import moments
from infeng_calibrate.texts import read
from infeng_convert.api import parse_config
from infeng_convert.interfaces.calibrators import digest

from infeng_core import Engine
from infeng_core.cli import main
from infeng_core.errors import UsageError
from infeng_core.formats.quant import BUILTIN
from infeng_core.models.families import families


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model.write(tmp_path_factory.mktemp("source"), tiny_model.Shape(tie=False, bias=True))


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("The quick brown fox jumps over the lazy dog. " * 60, encoding="utf-8")
    return path


def convert(source: Path, made: Path, *options: str) -> dict:
    assert main(["convert", str(source), str(made), "--format", "int4-g64", *options]) == 0
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in made.iterdir()}


def test_each_stage_begins_with_a_linear_op_and_gives_the_values_of_later_stages(source):
    graph = families()["llama"].graph(parse_config(json.loads((source / "config.json").read_text()), source))
    found = stages(graph)
    assert [stage.linear and stage.linear.weight.rpartition(".")[2] for stage in found[:5]] == [
        None, "qkv_proj", "o_proj", "gate_up_proj", "down_proj",
    ]  # fmt: skip
    assert [stage.gives for stage in found[:5]] == [
        ("hidden", "normed"), ("attended",), ("hidden", "normed"), ("gated",), ("hidden", "normed"),
    ]  # fmt: skip
    assert [op for stage in found for op in stage.ops] == list(graph.ops)


@pytest.mark.slow
def test_the_artifact_names_its_text_and_a_second_conversion_gives_equal_bytes(source, text, tmp_path):
    files = [
        convert(source, tmp_path / f"threads{threads}", "--calibrate", str(text), "--set", f"threads.count={threads}")
        for threads in (1, 2)
    ]
    assert files[0] == files[1]
    manifest = (tmp_path / "threads1" / "manifest.yaml").read_text()
    assert "name: gptq" in manifest and "tokens: " in manifest


@pytest.mark.slow
def test_text_generated_by_the_model_calibrates_it(source, tmp_path):
    assert convert(source, tmp_path / "one", "--calibrate", "auto") == convert(
        source, tmp_path / "two", "--calibrate", "auto"
    )


@pytest.mark.slow
def test_text_generated_by_the_model_needs_no_tokenizer(source, tmp_path, monkeypatch):
    monkeypatch.setattr("infeng_calibrate.texts.WRITTEN", 512)
    bare = shutil.copytree(source, tmp_path / "bare", ignore=shutil.ignore_patterns("tokenizer*"))
    texts = []
    for model, made in ((source, tmp_path / "one"), (bare, tmp_path / "two")):
        convert(model, made, "--calibrate", "auto")
        texts.append(yaml.safe_load((made / "manifest.yaml").read_text())["quantizer"]["settings"]["text"])
    assert texts[0] == texts[1]


def test_without_calibration_codes_are_rounded_to_nearest(source, tmp_path):
    assert convert(source, tmp_path / "none", "--calibrate", "none") == convert(source, tmp_path / "plain")


@pytest.mark.slow
def test_a_calibrated_model_is_closer_to_the_original_than_a_rounded_one(source, text, tmp_path):
    """By the logits of text like that it was fitted to; a random model has nothing to lose but these."""
    convert(source, tmp_path / "gptq", "--calibrate", str(text))
    ids = list(range(20, 60)) * 3

    def scores(model: Path, **options: str) -> np.ndarray:
        with Engine(model, threads=1, **options) as engine:
            encoded = engine.tokenize(text.read_text()[:300])
            return np.array([one.logprob for one in engine.score(encoded[:1], encoded[1:] or ids)])

    exact = scores(source, format="f32")
    errors = [
        np.abs(scores(tmp_path / "gptq") - exact).mean(),
        np.abs(scores(source, format="int4-g64") - exact).mean(),
    ]
    assert errors[0] < errors[1]


def test_moments_do_not_depend_on_the_steps_of_the_text():
    x = np.random.default_rng(0).standard_normal((600, 32)).astype(np.float32)
    whole = moments([x], BUILTIN["bf16"], 1)
    assert np.array_equal(whole, moments([x[:100], x[100:101], x[101:]], BUILTIN["bf16"], 2))
    assert np.array_equal(whole, whole.T)


@pytest.mark.parametrize("format", ["int4-p32", "bf16"])
def test_texts_without_a_row_for_an_expert_add_nothing(format):
    x = np.random.default_rng(4).standard_normal((300, 72)).astype(np.float32)
    with_none = moments([x[:0], x[:10], x[10:10], x[10:], x[:0]], BUILTIN[format], 2)
    assert np.array_equal(with_none, moments([x], BUILTIN[format], 2))


def test_inputs_are_rounded_as_in_kernels():
    x = np.random.default_rng(0).standard_normal((3, 100)).astype(np.float32)
    x[1] = 0
    made = quantized(x)
    step = np.abs(x[0, :64]).max() / 127
    assert np.array_equal(made[1], np.zeros(100, np.float32))
    assert np.allclose(np.rint(made[0, :64] / step), made[0, :64] / step, atol=1e-3)
    assert np.abs(made - x).max() <= np.abs(x).max() / 127 * 0.5001


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("none.txt", None, "no such file"),
        ("short.txt", "Too short.", "256 are the least"),
        ("bad.jsonl", '{"text": "x"}\n{', "line 2"),
        ("half.jsonl", '{"text": "x"}\n{"text": "\\ud83d"}', "line 2"),
        ("deep.jsonl", "[" * 100_000, "line 1: is no JSON"),
        ("latin.txt", b"\xff\xfe" * 1000, "UTF-8"),
    ],
)
def test_a_file_without_text_is_refused_by_name(name, content, why, tmp_path):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UsageError, match=why) as caught:
        read(path, lambda texts: [list(text.encode()) for text in texts], context=64)
    assert name in str(caught.value)


def test_the_strings_of_a_line_are_one_document(tmp_path):
    path = tmp_path / "two.jsonl"
    path.write_text("\n".join(json.dumps({"asked": "q" * 200, "number": 3, "said": "a" * 200}) for _ in range(2)))
    texts = read(path, lambda texts: [list(text.encode()) for text in texts], context=300, tokens=1000)
    assert [len(one) for one in texts] == [300, 101, 300, 101]
    assert bytes(texts[0].astype(np.uint8)) == b"q" * 200 + b"\n" + b"a" * 99
    assert digest(texts) != digest([np.concatenate(texts)])


def test_unicode_line_separators_in_json_do_not_split_a_document(tmp_path):
    path = tmp_path / "odd.jsonl"
    path.write_bytes('{"text": "one\u2028two\x85three"}\r\n'.encode() * 20)
    texts = read(path, lambda texts: [list(text.encode()) for text in texts], context=64)
    assert len(texts) == 20 and bytes(texts[0].astype(np.uint8)).decode() == "one\u2028two\x85three"


def test_documents_use_the_prompt_template_and_each_part_begins_with_bos(tmp_path):
    path = tmp_path / "asked.jsonl"
    path.write_text("\n".join(json.dumps({"question": "q" * 90, "answer": "a" * 90}) for _ in range(9)))
    texts = read(path, lambda texts: [[1, *text.encode()] for text in texts], context=150, bos=1, tokens=400)
    whole = b"Question: " + b"q" * 90 + b"\nAnswer: " + b"a" * 90
    assert [bytes(one.astype(np.uint8)) for one in texts[:2]] == [b"\x01" + whole[:149], b"\x01" + whole[149:]]
    assert sum(map(len, texts)) == 400 and all(one[0] == 1 for one in texts)


def test_gptq_without_text_is_refused_with_the_right_command(source, tmp_path, capsys):
    assert main(["convert", str(source), str(tmp_path / "made"), "--quantizer", "gptq"]) != 0
    assert "--calibrate auto" in capsys.readouterr().err


@pytest.mark.slow
def test_calibrated_sub_scales_are_equal_bytes_for_every_number_of_threads(source, text, tmp_path):
    files = [
        convert(
            source,
            tmp_path / name,
            *("--format", "int4-p32", "--calibrate", calibrate, "--set", f"threads.count={threads}"),
        )
        for name, calibrate, threads in (("one", str(text), 1), ("two", str(text), 2), ("none", "none", 1))
    ]
    assert files[0] == files[1]
    assert files[0]["weights-00001.safetensors"] != files[2]["weights-00001.safetensors"]
    with Engine(tmp_path / "one", threads=1) as engine:
        assert set(engine.model.formats_used.values()) == {"int4-p32", "int8-row"}
