"""Text to ids and back by a tokenizer.json: the published vectors, and streams equal to a full decode."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path

import pytest
import tiny_model
from drawn import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from infeng_tokenizers.api import HfTokenizer
from infeng_tokenizers.bounds import growth_bounds
from infeng_tokenizers.detokenizer import REPLACEMENT

from infeng_core.errors import ModelError, RequestError
from infeng_core.settings.config import EngineConfig, TokenizerSection

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


@settings(max_examples=examples(300), deadline=None)
@given(prompt=tiny_ids, tokens=tiny_ids)
def test_pieces_of_a_byte_level_stream_are_the_full_decode(byte_level, prompt, tokens):
    check_stream(byte_level, prompt, tokens)


@needs_data
@settings(max_examples=examples(300), deadline=None)
@given(prompt=llama_ids, tokens=llama_ids)
def test_pieces_of_a_sentencepiece_stream_are_the_full_decode(sentencepiece, prompt, tokens):
    check_stream(sentencepiece, prompt, tokens)


@settings(max_examples=examples(100), deadline=None)
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
    os.mkfifo(tmp_path / "tokenizer.json")
    with pytest.raises(ModelError, match=r"tokenizer\.json: it is no regular file: copy"):
        hf(tmp_path)


def spoilt(directory: Path, **parts: object) -> Path:
    """Write a tiny model whose tokenizer.json has other ``parts``."""
    path = tiny_model.write(directory) / "tokenizer.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **parts}))
    return directory


def replace(pattern: str, content: str) -> dict[str, object]:
    return {"type": "Replace", "pattern": {"String": pattern}, "content": content}


def charsmap(*texts: bytes) -> dict[str, object]:
    data = (1024).to_bytes(4, "little") + bytes(1024) + b"\0".join(texts)  # a trie without leaves
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(data).decode()}


DOUBLING = {"type": "Sequence", "normalizers": [replace("a", "aa")] * 40}
REPEATING = {"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A", "type_id": 0}}] * 500,
             "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
             "special_tokens": {}}  # fmt: skip


@pytest.mark.parametrize(
    ("parts", "bound"),
    [
        ({}, 1),
        ({"normalizer": {"type": "NFKC"}}, 1),
        ({"normalizer": DOUBLING}, 2**40),
        ({"normalizer": replace("", "xyz")}, 4),
        ({"normalizer": {"type": "Replace", "pattern": {"Regex": "b*"}, "content": "x" * 9}}, 10),
        ({"normalizer": {"type": "Prepend", "prepend": "x" * 9}}, 10),
        ({"normalizer": charsmap(b"x", b"y" * 500)}, 500),
        ({"normalizer": charsmap(b"x" * 18)}, 1),
        ({"decoder": {"type": "Sequence", "decoders": [replace("a", "aaa")] * 2}}, 9),
        ({"post_processor": REPEATING}, 500),
        ({"normalizer": {"type": "Replace"}, "decoder": [], "pre_tokenizer": 3, "post_processor": {"type": []}}, 1),
    ],
)
def test_the_growth_of_a_text_is_bounded(parts, bound):
    assert max(growth_bounds(parts).values()) == bound


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"normalizer": DOUBLING}, "its normalizer can make a text 1.1e"),
        ({"decoder": {"type": "Sequence", "decoders": [replace("a", "a" * 300)]}}, "its decoder can make a text 300"),
        ({"normalizer": charsmap(b"y" * 500)}, "its normalizer can make a text 500 times"),
        ({"post_processor": REPEATING}, "its post_processor can make a text 500 times"),
        ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}}, "not a tokenizer"),  # panics
        ({"normalizer": {"type": "Replace", "pattern": {"Regex": "((("}, "content": "x"}}, "not a tokenizer"),
        ({"normalizer": {"type": "Sequence", "normalizers": "none"}}, "not a tokenizer"),
        *(
            ({"normalizer": {"type": "Replace", "pattern": {"Regex": pattern}, "content": "x"}}, "not .* before a text")
            for pattern in ("", "b*", "^", r"\b", "(?=1)")
        ),
        ({"normalizer": replace("", "x")}, r"not a tokenizer: normalizer\.pattern is empty"),
        ({"normalizer": {"type": "Prepend", "prepend": ""}}, r"not a tokenizer: normalizer\.prepend is empty"),
        ({"decoder": {"type": "Strip", "content": " ", "start": 0, "stop": 1}}, r"not .* decoder\.stop is not 0"),
        ({"pre_tokenizer": {"type": "FixedLength", "length": 0}}, r"not .* pre_tokenizer\.length is 0"),
        ({"normalizer": charsmap(b"\xff")}, r"not .* texts that are not UTF-8"),
    ],
)
def test_a_hostile_tokenizer_is_refused_when_it_is_read(tmp_path, parts, words):
    with pytest.raises(ModelError, match=rf"tokenizer\.json: {words}"):
        hf(spoilt(tmp_path / "model", **parts))


def test_a_tokenizer_json_that_names_a_part_twice_is_refused(tmp_path):
    path = tiny_model.write(tmp_path / "model") / "tokenizer.json"
    path.write_text(path.read_text().replace('"normalizer"', f'"normalizer": {json.dumps(DOUBLING)}, "normalizer"', 1))
    with pytest.raises(ModelError, match="key 'normalizer' is given twice"):
        hf(tmp_path / "model")


@pytest.mark.parametrize(
    "parts",
    [
        {"normalizer": {"type": "Replace", "pattern": {"Regex": "(?=aaaa aaa)"}, "content": "x"}},  # out of bounds
        {"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "[UNK]"}},
        {"model": {"type": "Unigram", "vocab": [["a", 0.0]], "unk_id": None}},
    ],
    ids=["panic", "no unknown word", "no unknown piece"],
)
def test_a_failure_while_encoding_is_that_prompts_error(tmp_path, parts):
    tokenizer = hf(spoilt(tmp_path / "model", **parts))
    with pytest.raises(RequestError, match="prompt: the tokenizer failed on it"):
        tokenizer.encode(["aaaa aaa"])


def test_a_text_that_no_context_holds_is_refused_before_it_is_encoded(tmp_path, byte_level):
    with pytest.raises(RequestError, match="prompt of 10000000 characters: at most 4194304 are encoded"):
        byte_level.encode(["x" * 10_000_000])
    grows = hf(spoilt(tmp_path / "model", normalizer=replace("a", "a" * 200)))
    with pytest.raises(RequestError, match="at most 671088 are encoded"):
        grows.encode(["a" * 1_400_000])


def test_special_tokens_in_a_text_are_ids_or_text_as_is_asked(tmp_path):
    directory = tiny_model.write(tmp_path / "model")
    tokenizer = hf(directory)
    [parsed] = tokenizer.encode(["a</s>b"])
    [plain] = tokenizer.encode(["a</s>b"], parse_special=False)
    assert tiny_model.EOS in parsed and tiny_model.EOS not in plain
    assert plain[0] == tiny_model.BOS
    assert tokenizer.decode(plain) == "a</s>b"
    assert tokenizer.encode(["a</s>b"]) == [parsed]
    careful = HfTokenizer(directory, EngineConfig(tokenizer=TokenizerSection(parse_special=False)))
    assert careful.encode(["a</s>b"]) == [plain]
    assert careful.encode(["a</s>b"], parse_special=True) == [parsed]


@pytest.mark.parametrize("add_bos", [True, False, None])
def test_a_typed_beginning_of_text_is_not_doubled(tmp_path, add_bos):
    directory = tiny_model.write(tmp_path / "model")
    settings_path = directory / "tokenizer_config.json"
    settings_path.write_text(json.dumps({"bos_token": "<s>", "add_bos_token": add_bos}))
    tokenizer = hf(directory)
    [ids], [typed], [twice] = (tokenizer.encode([text]) for text in ("abc", "<s>abc", "<s><s>abc"))
    bos = tiny_model.BOS
    assert typed == (ids if add_bos is not False else [bos, *ids])
    assert twice == [bos, *typed]
    assert tokenizer.encode(["<s>abc"], parse_special=False)[0].count(bos) == (add_bos is not False)


@pytest.mark.parametrize("content", ["", "{", "[1, 2]", '{"model": 3}'])
def test_a_broken_tokenizer_is_named(tmp_path, content):
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ModelError, match=r"tokenizer\.json: not a tokenizer"):
        hf(tmp_path)


@pytest.mark.parametrize("content", ["{", "[]", "\x00", '{"add_bos_token": "yes"}'])
def test_a_broken_tokenizer_config_is_named(tmp_path, content):
    directory = tiny_model.write(tmp_path / "model")
    (directory / "tokenizer_config.json").write_text(content)
    with pytest.raises(ModelError, match=r"tokenizer_config\.json: (not|add_bos_token is neither)"):
        hf(directory)


@needs_data
@pytest.mark.parametrize("text", ["Hello, wörld!\n\n  two 🙂 spaces", "tab\tand 中文", "a", "é́\u200d"])
def test_a_text_is_the_bytes_of_its_tokens(sentencepiece, byte_level, text):
    for tokenizer in (sentencepiece, byte_level):
        [ids] = tokenizer.encode([text])
        assert ids[0] == tokenizer.bos_id
        assert tokenizer.token_bytes(ids[0]) == b"<s>"
        spelled = b"".join(map(tokenizer.token_bytes, ids[1:]))
        assert spelled.removeprefix(b" ") == text.encode()


def test_an_id_outside_the_vocabulary_has_no_bytes(byte_level):
    assert [byte_level.token_bytes(token) for token in (-1, tiny_model.VOCAB + 9, 2**31, 2**70)] == [b""] * 4


@needs_data
def test_special_tokens_stand_in_a_text_that_does_not_skip_them(sentencepiece):
    [ids] = sentencepiece.encode(["so 🙂"])
    [more] = sentencepiece.encode(["and on"])
    tokens = [*ids[1:], sentencepiece.eos_id, *more[1:]]  # the last letter waits as bytes when the end token comes
    stream = sentencepiece.detokenizer([1], skip_special_tokens=False)
    pieces = [stream.push(token) for token in tokens]
    assert "".join(pieces) + stream.finish() == "so 🙂</s> and on"
    assert pieces[len(ids) - 1] == "🙂</s>"
    assert "".join(streamed(sentencepiece, [1], tokens)) == "so 🙂 and on"


def spelled(tokenizer: HfTokenizer, tokens: list[int]) -> list[str]:
    stream = tokenizer.detokenizer([], skip_special_tokens=False)
    return [*(stream.push(token) for token in tokens), stream.finish()]


def test_special_tokens_are_spelled_where_they_are_not_skipped(byte_level):
    [ids] = byte_level.encode(["héllo</s> 🦙<s>wörld"], parse_special=True)
    assert "".join(spelled(byte_level, ids)) == "<s>héllo</s> 🦙<s>wörld"
    assert "".join(streamed(byte_level, [], ids)) == "héllo 🦙wörld"
    assert spelled(byte_level, [1, tiny_model.VOCAB + 9]) == ["</s>", "", ""]


@needs_data
def test_special_tokens_come_behind_the_bytes_before_them_and_keep_blanks(sentencepiece):
    for text in ("a 🦙</s> b", "🦙</s>🦙", "a</s></s>b", "</s>"):
        [ids] = sentencepiece.encode([text], parse_special=True)
        found = "".join(spelled(sentencepiece, ids))  # encoding puts a blank behind a special token
        assert found.replace(" ", "") == f"<s>{text}".replace(" ", "")


@settings(max_examples=examples(200), deadline=None)
@given(tokens=tiny_ids)
def test_without_the_spelled_tokens_whole_characters_are_the_same(byte_level, tokens):
    whole = "".join(streamed(byte_level, [], tokens))
    if REPLACEMENT not in whole:
        found = "".join(spelled(byte_level, tokens))
        assert REPLACEMENT in found or found.replace("<s>", "").replace("</s>", "") == whole


def test_special_tokens_are_listed_with_their_ids(byte_level):
    assert byte_level.special_tokens == {"<s>": 0, "</s>": 1}
    assert [byte_level.special_text(token) for token in (0, 1, 2)] == ["<s>", "</s>", ""]


def test_a_hostile_tokenizer_prints_nothing_but_its_error(tmp_path, capfd):
    """A panic of the library would be lines of its own on standard error."""
    for number, parts in enumerate(
        [
            {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}},
            {"normalizer": charsmap(b"\xff")},
            {"post_processor": {**REPEATING, "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}]}},
            {"model": {"type": "BPE", "vocab": {"a": 0, "é": 1, "aé": 2}, "merges": [["a", "é"]],
                       "continuing_subword_prefix": "x"}},
        ]
    ):  # fmt: skip
        with pytest.raises(ModelError, match=r"tokenizer\.json: not a tokenizer"):
            hf(spoilt(tmp_path / str(number), **parts))
    assert capfd.readouterr() == ("", "")


def trie(keys: dict[bytes, int]) -> bytes:
    """Return a double array for keys of one byte, in which each has a block of its own: unit ^ offset is the next."""
    units = [0] * (256 * (len(keys) + 2))
    units[0] = 256 << 10  # the children of the root begin at 256
    for number, (key, value) in enumerate(keys.items()):
        child, block = 256 ^ key[0], 256 * (number + 2)
        units[child] = (child ^ block) << 10 | 1 << 8 | key[0]
        units[block] = 1 << 31 | value
    return b"".join(unit.to_bytes(4, "little") for unit in units)


@pytest.mark.parametrize(
    ("value", "unit", "why"),
    [
        (0, None, None),
        (3, None, None),
        (4, None, None),  # the end: an empty text
        (1, None, "texts that are not there"),  # inside a letter
        (99, None, "texts that are not there"),
        (0, 5000 << 10, "leads out of itself"),
    ],
)
def test_a_charsmap_leads_only_to_what_it_holds(tmp_path, value, unit, why):
    units, texts = trie({b"a": value}), "é\0x".encode()
    if unit is not None:
        units = unit.to_bytes(4, "little") + units[4:]
    data = len(units).to_bytes(4, "little") + units + texts
    part = {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(data).decode()}
    if why:
        with pytest.raises(ModelError, match=rf"normalizer\.precompiled_charsmap .*{why}"):
            hf(spoilt(tmp_path / "model", normalizer=part))
    else:
        tokenizer = hf(spoilt(tmp_path / "model", normalizer=part))
        wanted = {0: "b é b", 3: "b x b", 4: "b  b"}[value]
        [found, same] = tokenizer.encode(["b a b", wanted])
        assert found == same
