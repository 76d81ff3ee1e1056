"""Vocabularies in SentencePiece's and tiktoken's own files give the same ids as those libraries."""

from __future__ import annotations

import base64
import io
import itertools
import json
import random
from pathlib import Path

import pytest
import sentencepiece
import tiny_model
from convert_parts import load
from infeng_convert import sentencepiece as ours
from infeng_convert import tiktoken
from infeng_tokenizers.api import HfTokenizer
from tokenizers import Tokenizer

from infeng_core.errors import ModelError
from infeng_core.plug.assembly import load_config

WORDS = "the quick brown fox jumps over a lazy dog while seven wizards box and quiz them for pay in Zürich"
TEXTS = ["the quick brown fox", "  two  spaces ", "", " ", "héllo 你好 🦙\n\tx", "unseen: @#%", "a▁b", "dog</s>dog"]


@pytest.fixture(scope="module")
def corpus() -> list[str]:
    rng = random.Random(1)
    return [" ".join(rng.choices(WORDS.split(), k=rng.randint(3, 12))) for _ in range(400)]


def trained(corpus: list[str], kind: str, **options: object) -> bytes:
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(corpus),
        model_writer=out,
        model_type=kind,
        vocab_size=SIZES[kind] + 256 * bool(options.get("byte_fallback")),
        minloglevel=2,
        num_threads=1,
        **options,
    )
    return out.getvalue()


SIZES = {"bpe": 90, "unigram": 42}
LLAMA = {"byte_fallback": True, "normalization_rule_name": "identity", "remove_extra_whitespaces": False}
KINDS = {
    "bpe as of Llama": ("bpe", LLAMA),
    "bpe without the first space": ("bpe", LLAMA | {"add_dummy_prefix": False}),
    "bpe that normalizes": ("bpe", {}),
    "unigram": ("unigram", {}),
    "unigram as of Llama": ("unigram", LLAMA),
    "bpe as of Gemma": (
        "bpe",
        LLAMA | {"add_dummy_prefix": False, "user_defined_symbols": ["quick", "@#"]},
    ),
}


@pytest.mark.parametrize("name", KINDS)
def test_ids_and_texts_are_those_of_the_library(corpus: list[str], name: str) -> None:
    kind, options = KINDS[name]
    data = trained(corpus, kind, **options)
    theirs = sentencepiece.SentencePieceProcessor(model_proto=data)
    fast = Tokenizer.from_str(json.dumps(ours.tokenizer_json(data, Path("tokenizer.model"))))
    assert fast.get_vocab_size() == theirs.vocab_size()
    for text in [*corpus[:40], *(text for text in TEXTS if "</s>" not in text)]:
        ids = theirs.encode(text)
        assert fast.encode(text).ids == ids, text
        if theirs.unk_id() not in ids and not text.startswith(" "):
            assert fast.decode(ids) == theirs.decode(ids)


def test_pieces_of_users_beside_spaces_that_come_and_go_are_refused(corpus: list[str]) -> None:
    data = trained(corpus, "bpe", user_defined_symbols=["quick"])
    with pytest.raises(ModelError, match="users defined"):
        ours.tokenizer_json(data, Path("tokenizer.model"))


def test_damage_is_refused_or_harmless(corpus: list[str]) -> None:
    data = trained(corpus, "bpe")
    rng = random.Random(2)
    path = Path("tokenizer.model")
    for length in range(0, len(data), 701):
        try:
            ours.tokenizer_json(data[:length], path)
        except ModelError as error:
            assert "tokenizer.model" in str(error) and error.remedy
    for _ in range(15):
        broken = bytearray(data)
        for _ in range(3):
            broken[rng.randrange(len(broken))] = rng.randrange(256)
        try:
            ours.tokenizer_json(bytes(broken), path)
        except ModelError:
            continue


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "no piece"),
        (b"\x0a\xff\xff\xff\xff\x0f", "beyond the end"),
        (b"\xff" * 11, "64 bits"),
        (b"\x0b", "wire type 3"),
    ],
)
def test_a_file_that_is_no_sentencepiece_model_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(ModelError, match=why):
        ours.tokenizer_json(data, Path("tokenizer.model"))


def test_a_directory_with_tokenizer_model_alone_is_run(tmp_path: Path, corpus: list[str]) -> None:
    directory = tiny_model.write(tmp_path / "model", tiny_model.Shape(vocab=346))
    (directory / "tokenizer.json").unlink()
    (directory / "tokenizer.model").write_bytes(trained(corpus, "bpe", **LLAMA))
    config = load_config(None)
    tokenizer = HfTokenizer(load(directory, config, progress=False).tokenizer_dir, config)
    [ids] = tokenizer.encode(["the fox"])
    assert ids[0] == 1 and tokenizer.decode(ids) == "the fox"  # tokenizer_config.json asks for the first


def ranks(texts: list[str]) -> tuple[bytes, dict[bytes, int]]:
    """Train a few joins, as tiktoken's own example does."""
    tokens = [bytes([byte]) for byte in range(256)]
    words = [[bytes([byte]) for byte in text.encode()] for text in texts]
    for _ in range(60):
        pairs: dict[bytes, int] = {}
        for word in words:
            for left, right in itertools.pairwise(word):
                pairs[left + right] = pairs.get(left + right, 0) + 1
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        tokens.append(best)
        for word in words:
            at = 0
            while at < len(word) - 1:
                if word[at] + word[at + 1] == best:
                    word[at : at + 2] = [best]
                at += 1
    found = {token: rank for rank, token in enumerate(dict.fromkeys(tokens))}
    return b"".join(base64.b64encode(token) + b" %d\n" % rank for token, rank in found.items()), found


def joined(word: bytes, table: dict[bytes, int]) -> list[int]:
    """Join as tiktoken does: the join of the lowest rank first, then the leftmost."""
    parts = [bytes([byte]) for byte in word]
    while True:
        known = [(table[a + b], at) for at, (a, b) in enumerate(itertools.pairwise(parts)) if a + b in table]
        if not known:
            return [table[part] for part in parts]
        at = min(known)[1]
        parts[at : at + 2] = [parts[at] + parts[at + 1]]


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_ranks_give_the_ids_of_tiktoken(corpus: list[str], family: str) -> None:
    data, table = ranks([f" {word}" for line in corpus[:60] for word in line.split()])
    settings = {"added_tokens_decoder": {str(len(table) + 1): {"content": "<|end|>", "special": True}}}
    assert tiktoken.is_ranks(data)
    document = tiktoken.tokenizer_json(data, settings, family, Path("tokenizer.model"))
    fast = Tokenizer.from_str(json.dumps(document))
    for text in [*corpus[:40], *TEXTS]:
        words = [piece for piece, _ in fast.pre_tokenizer.pre_tokenize_str(text)]
        letters = {letter: byte for byte, letter in enumerate(tiktoken.byte_letters())}
        expected = [number for word in words for number in joined(bytes(letters[letter] for letter in word), table)]
        if family == "qwen2":  # which normalizes, and takes no whole words
            assert fast.encode(text).ids == expected
        assert fast.decode(fast.encode(text).ids) == text
    assert fast.encode("a<|end|>").ids[-1] == len(table) + 1


def test_a_family_that_publishes_no_ranks_is_refused(corpus: list[str]) -> None:
    data, _ = ranks(corpus[:60])
    with pytest.raises(ModelError, match="splitting rule of family gemma"):
        tiktoken.tokenizer_json(data, {}, "gemma", Path("tokenizer.model"))
    with pytest.raises(ModelError, match="line 3"):
        tiktoken.tokenizer_json(data.replace(b" 2\n", b" 7\n"), {}, "llama", Path("tokenizer.model"))
