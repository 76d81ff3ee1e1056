"""Text to ids and back: the published vectors, and a stream that says exactly what a full decode says."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import tiny_model
from hypothesis import given, settings
from hypothesis import strategies as st

from infeng_core.errors import ModelError
from infeng_core.plug.config import EngineConfig
from infeng_core.tokenizer import REPLACEMENT, HfTokenizer

DATA = os.environ.get("INFENG_TEST_DATA")
needs_data = pytest.mark.skipif(DATA is None, reason="INFENG_TEST_DATA is not set")


def hf(directory: Path) -> HfTokenizer:
    return HfTokenizer(directory, EngineConfig())


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory: pytest.TempPathFactory) -> HfTokenizer:
    return hf(tiny_model.write(tmp_path_factory.mktemp("tiny")))


@pytest.fixture(scope="module")
def sentencepiece() -> HfTokenizer:
    return hf(Path(DATA or "") / "tokenizer-tinyllama")


def streamed(tokenizer: HfTokenizer, prompt: list[int], tokens: list[int]) -> list[str]:
    stream = tokenizer.detokenizer(prompt)
    return [*(stream.push(token) for token in tokens), stream.finish()]


def expected(tokenizer: HfTokenizer, prompt: list[int], tokens: list[int]) -> str:
    """Return the full decode without what it shares with the prompt's."""
    before, whole = tokenizer.decode(prompt), tokenizer.decode(prompt + tokens)
    return whole[len(os.path.commonprefix([before, whole])) :]  # noqa: RUF071 (texts, not paths)


def check_stream(tokenizer: HfTokenizer, prompt: list[int], tokens: list[int]) -> None:
    pieces = streamed(tokenizer, prompt, tokens)
    assert "".join(pieces) == expected(tokenizer, prompt, tokens)
    assert not any(piece.endswith(REPLACEMENT) for piece in pieces[:-1]), "half a character was given out"


# Ids around every corner: special tokens, raw bytes, spaces, ids past the vocabulary.
tiny_ids = st.lists(st.one_of(st.integers(0, tiny_model.VOCAB + 3), st.integers(60, 260)), max_size=24)
llama_ids = st.lists(
    st.one_of(st.integers(0, 32_003), st.integers(0, 2), st.integers(3, 258), st.sampled_from([29871, 259, 13, 243])),
    max_size=24,
)


@settings(max_examples=300, deadline=None)
@given(prompt=tiny_ids, tokens=tiny_ids)
def test_pieces_of_a_byte_level_stream_are_the_full_decode(byte_level, prompt, tokens):
    check_stream(byte_level, prompt, tokens)


@needs_data
@settings(max_examples=300, deadline=None)
@given(prompt=llama_ids, tokens=llama_ids)
def test_pieces_of_a_sentencepiece_stream_are_the_full_decode(sentencepiece, prompt, tokens):
    check_stream(sentencepiece, prompt, tokens)


@settings(max_examples=100, deadline=None)
@given(text=st.text(max_size=30))
def test_any_text_survives_a_byte_level_stream(byte_level, text):
    [ids] = byte_level.encode([text])
    assert "".join(streamed(byte_level, ids[:1], ids[1:])) == text


def test_a_character_of_several_tokens_comes_whole(byte_level):
    [ids] = byte_level.encode(["a🦙b"])
    pieces = streamed(byte_level, ids[:1], ids[1:])
    assert [piece for piece in pieces if piece] == ["a", "🦙", "b"]


@needs_data
def test_sentencepiece_bytes_come_as_whole_characters(sentencepiece):
    [ids] = sentencepiece.encode(["a🦙b"])
    assert len(ids) > 5
    pieces = streamed(sentencepiece, ids[:1], ids[1:])
    assert [piece for piece in pieces if piece] == ["a", "🦙b"]


@needs_data
def test_a_completion_keeps_the_space_after_its_prompt_and_has_none_at_the_start_of_a_text(sentencepiece):
    bos, once, upon = sentencepiece.encode(["Once upon"])[0]
    assert streamed(sentencepiece, [bos], [once, upon]) == ["Once", " upon", ""]
    assert streamed(sentencepiece, [bos, once], [upon]) == [" upon", ""]


@needs_data
def test_the_published_vectors_of_the_llama_tokenizer(sentencepiece):
    folder = Path(DATA or "") / "tokenizer-vectors"
    inputs = (
        (folder / "ggml-vocab-llama-spm.gguf.inp").read_text(encoding="utf-8").split("\n__ggml_vocab_test__\n")[:-1]
    )
    outputs = (folder / "ggml-vocab-llama-spm.gguf.out").read_text(encoding="utf-8").splitlines()
    assert len(inputs) == len(outputs) == 46
    for text, line in zip(inputs, outputs, strict=True):
        [ids] = sentencepiece.encode([text])
        assert ids == [1, *map(int, line.split())], repr(text)


@needs_data
def test_an_empty_prompt_is_the_beginning_of_text(sentencepiece, byte_level):
    assert sentencepiece.encode([""]) == [[1]]
    assert byte_level.encode([""]) == [[tiny_model.BOS]]


def test_add_bos_token_decides_over_the_post_processor(tmp_path):
    directory = tiny_model.write(tmp_path / "model")
    settings_path = directory / "tokenizer_config.json"
    for add_bos, starts in ((True, True), (False, False), (None, True)):
        value = "" if add_bos is None else f', "add_bos_token": {str(add_bos).lower()}'
        settings_path.write_text('{"bos_token": {"content": "<s>"}, "eos_token": "</s>"' + value + "}")
        [ids] = hf(directory).encode(["abc"])
        assert (ids[0] == tiny_model.BOS) is starts
        assert ids.count(tiny_model.BOS) == int(starts)


def test_a_missing_tokenizer_is_named_with_its_remedy(tmp_path):
    (tmp_path / "tokenizer.model").write_bytes(b"")
    with pytest.raises(
        ModelError, match=r"tokenizer\.json: the file is missing \(tokenizer\.model is not read\): copy"
    ):
        hf(tmp_path)


@pytest.mark.parametrize("content", ["", "{", "[1, 2]", '{"model": 3}'])
def test_a_broken_tokenizer_is_named(tmp_path, content):
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ModelError, match=r"tokenizer\.json: not a tokenizer"):
        hf(tmp_path)


@pytest.mark.parametrize("content", ["{", "[]", "\x00"])
def test_a_broken_tokenizer_config_is_named(tmp_path, content):
    directory = tiny_model.write(tmp_path / "model")
    (directory / "tokenizer_config.json").write_text(content)
    with pytest.raises(ModelError, match=r"tokenizer_config\.json: not"):
        hf(directory)
