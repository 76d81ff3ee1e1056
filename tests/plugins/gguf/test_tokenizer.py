"""Tokenizers from GGUF give the ids that llama.cpp gives."""

from __future__ import annotations

import heapq
import json
import struct
import unicodedata
from functools import cache
from pathlib import Path
from typing import Any

import gguf_parts as parts
import numpy as np
import pytest
from gguf_parts import Raw, string, u32
from infeng_convert import tiktoken
from infeng_convert.sentencepiece_vocab import BYTE, CONTROL, NORMAL, UNKNOWN, USER_DEFINED, SentencePieceVocab
from infeng_gguf.file import GgufFile
from infeng_gguf.pretokenizers import CASED, SPLITTINGS
from infeng_gguf.tokenizer import GgufTokenizer
from infeng_tokenizers.api import HfTokenizer
from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel

from infeng_core.errors import ModelError
from infeng_core.settings.config import EngineConfig


@cache
def made(path: Path) -> tuple[Tokenizer, dict[str, Any]]:
    files = GgufTokenizer(GgufFile(path)).files()
    return Tokenizer.from_str(files["tokenizer.json"].decode()), json.loads(files["tokenizer_config.json"])


@pytest.mark.parametrize("name", ["gpt-2", "phi-3"])
def test_token_ids_equal_the_published_vectors(third_party: Path, name: str) -> None:
    path = third_party / "gguf-vocab" / f"ggml-vocab-{name}.gguf"
    fast, settings = made(path)
    inputs = path.with_name(f"{path.name}.inp").read_text(encoding="utf-8").split("\n__ggml_vocab_test__\n")[:-1]
    outputs = path.with_name(f"{path.name}.out").read_text(encoding="utf-8").splitlines()
    assert len(inputs) == len(outputs) == 46
    for text, line in zip(inputs, outputs, strict=True):
        assert fast.encode(text).ids == list(map(int, line.split())), repr(text)
    assert settings["add_bos_token"] is (name == "phi-3")


def test_the_template_and_special_tokens_of_phi_3_are_read(third_party: Path) -> None:
    path = third_party / "gguf-vocab" / "ggml-vocab-phi-3.gguf"
    fast, settings = made(path)
    assert "<|assistant|>" in settings["chat_template"]
    assert (settings["bos_token"], settings["eos_token"]) == ("<s>", "<|endoftext|>")
    assert GgufTokenizer(GgufFile(path)).ends() == (32000, 32007)  # the end of the text, and of a turn
    assert fast.encode("<|user|> \n x<|end|>").ids[0] == 32010
    assert fast.encode("<|user|>   x").ids == fast.encode("<|user|>x").ids  # special tokens take spaces along
    assert fast.decode(fast.encode("Hello wörld").ids) == "Hello wörld"


def reference(pieces: SentencePieceVocab, text: str) -> list[int]:
    """Join neighbours by score as llama.cpp does (``llm_tokenizer_spm_session``): the best first, then the leftmost."""
    ids = {piece: number for number, piece in enumerate(pieces.texts)}
    symbols: list[str] = list(text)
    after, before = list(range(1, len(symbols) + 1)), list(range(-1, len(symbols) - 1))
    queue: list[tuple[float, int, int, str]] = []

    def offer(left: int) -> None:
        right = after[left] if left >= 0 else len(symbols)
        if right < len(symbols) and symbols[left] + symbols[right] in ids:
            join = symbols[left] + symbols[right]
            heapq.heappush(queue, (-pieces.scores[ids[join]], left, right, join))

    for place in range(len(symbols) - 1):
        offer(place)
    while queue:
        _, left, right, join = heapq.heappop(queue)
        if after[left] != right or not symbols[left] or symbols[left] + symbols[right] != join:
            continue
        symbols[left], symbols[right] = join, ""
        after[left] = after[right]
        if after[left] < len(symbols):
            before[after[left]] = left
        offer(before[left])
        offer(left)
    return [ids.get(symbol, -1) for symbol in symbols if symbol]


def test_pieces_merge_in_the_order_of_their_scores() -> None:
    rng = np.random.default_rng(5)
    letters = "ab\u2581c"
    words = {"".join(rng.choice(list(letters), rng.integers(2, 6))) for _ in range(120)}
    texts = ["<unk>", *letters, *sorted(words)]
    scores = rng.permutation(len(texts)).astype(np.float32)
    kinds = [UNKNOWN] + [NORMAL] * (len(texts) - 1)
    pieces = SentencePieceVocab(texts, scores, kinds, unknown="<unk>", prefix=False)
    fast = Tokenizer.from_str(json.dumps(pieces.tokenizer_json()))
    for _ in range(200):
        text = "".join(rng.choice(list("ab c"), rng.integers(1, 40)))
        assert fast.encode(text).ids == reference(pieces, text.replace(" ", "\u2581")), text


def test_byte_tokens_spell_text_without_a_piece() -> None:
    texts = ["<unk>", "<s>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", "a"]
    kinds = [UNKNOWN, CONTROL, *[BYTE] * 256, NORMAL, NORMAL]
    pieces = SentencePieceVocab(texts, np.zeros(len(texts), np.float32), kinds, unknown="<unk>")
    fast = Tokenizer.from_str(json.dumps(pieces.tokenizer_json()))
    ids = fast.encode("aé<s>").ids
    assert ids == [258, 259, 2 + 0xC3, 2 + 0xA9, 1]
    assert fast.decode(ids) == "aé"


SPLITS = {  # of texts of llama.cpp's tokenizer tests and others, worked out by hand from its expressions
    "deepseek-llm": {
        "Hello, y'all! How are you": ["Hello", ",", " y", "'", "all", "!", " How", " are", " you"],
        "3333 x12": ["3", "3", "3", "3", " x", "1", "2"],
        "\n\n a": ["\n", "\n", " a"],
        "a  b  ": ["a", " ", " b", "  "],
        "\u6211\u60f3\u5728apple\u5de5\u4f5c1314151": ["\u6211\u60f3\u5728", "apple", "\u5de5\u4f5c", *"1314151"],
        " \uc5ec\uae30": [" ", "\uc5ec\uae30"],
        "w048 7tuijk": ["w", "0", "4", "8", " ", "7", "tuijk"],
        "h\u00e9llo \u041f\u0440\u0438\u0432\u0435\u0442": [*"h\u00e9", "llo", " \u041f\u0440\u0438\u0432\u0435\u0442"],
        "\u0e01x": ["\u0e01", "x"],
        "\U0001f680 (normal)": ["\U0001f680", " (", "normal", ")"],
        "a+b=c\u3002\uff01": ["a", "+", "b", "=", "c", *"\u3002\uff01"],
    },
    "deepseek-coder": {
        "Hello, y'all!": ["Hello", ",", " y", "'", "all", "!"],
        "x = 33\n": ["x", " = ", "3", "3", "\n"],
        " \uc5ec\uae30": [" ", "\uc5ec\uae30"],
        "def f(a):\n    return": ["def", " f", "(", "a", "):", "\n", "   ", " return"],
    },
    "seed-coder": {
        "Hello, y'ALL!": ["Hello", ",", " y", "'ALL", "!"],
        "we'VE 123 ++\n\n  x": ["we", "'VE", " ", "1", "2", "3", " ++", "\n\n", " ", " x"],
    },
}


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in SPLITS.items() for text in texts])
def test_pre_tokenizers_split_texts_like_llama_cpp(name: str, text: str) -> None:
    vocab = {letter: number for number, letter in enumerate(sorted(ByteLevel.alphabet()))}
    fast = Tokenizer.from_str(
        json.dumps({**SPLITTINGS[name].parts(), "model": {"type": "BPE", "vocab": vocab, "merges": []}})
    )
    pieces = [text[begin:end] for _, (begin, end) in fast.pre_tokenizer.pre_tokenize_str(text)]
    assert pieces == SPLITS[name][text]


def test_letters_of_deepseeks_pattern_are_cased_letters() -> None:
    """The list is theirs: what a property of today would add to it, their vocabulary did not see as letters."""
    ends = [[int(end, 16) for end in one.split("-")] for one in CASED.split()]
    letters = [chr(code) for one in ends for code in range(one[0], one[-1] + 1)]
    assert ends == sorted(ends) and len(set(letters)) == len(letters)
    assert {unicodedata.category(letter) for letter in letters} <= {"Lu", "Ll", "Lt"}


@pytest.mark.parametrize("letter", ["\u00fa", "\u00f5", "\u00c1"])
def test_an_added_token_spelled_like_a_byte_decodes_to_its_own_text(tmp_path: Path, letter: str) -> None:
    """deepseek-coder has a few such: the library alone decodes them to U+FFFD."""
    alphabet = sorted({*ByteLevel.alphabet()} - {letter})  # the letter is no other token: vocabularies hold each once
    kinds = [NORMAL] * len(alphabet) + [USER_DEFINED, CONTROL]
    tokens = [*alphabet, letter, "<|end|>"]
    entries = [
        string("tokenizer.ggml.model", "gpt2"),
        string("tokenizer.ggml.pre", "deepseek-coder"),
        parts.strings("tokenizer.ggml.tokens", tokens),
        parts.strings("tokenizer.ggml.merges", []),
        parts.text("tokenizer.ggml.token_type") + struct.pack(f"<IIQ{len(kinds)}i", 9, 5, len(kinds), *kinds),
    ]
    found = GgufTokenizer(GgufFile(Raw(entries=entries, infos=[], data=b"").write(tmp_path / "m.gguf"))).files()
    for name, data in found.items():
        (tmp_path / name).write_bytes(data)
    ours = HfTokenizer(tmp_path, EngineConfig())
    text = f"B{letter}n c{letter}{letter}"
    [ids] = ours.encode([text])
    assert ids.count(len(alphabet)) == 3
    assert ours.decode(ids) == ours.decode([*ids, len(alphabet) + 1]) == text
    assert b"".join(map(ours.token_bytes, ids)).decode() == text
    stream = ours.detokenizer([])
    assert "".join(stream.push(token) for token in ids) + stream.finish() == text


GPT2 = [
    string("tokenizer.ggml.model", "gpt2"),
    string("tokenizer.ggml.pre", "gpt-2"),
    parts.strings("tokenizer.ggml.tokens", ["a", "b", "ab", "<|im_end|>"]),
    parts.strings("tokenizer.ggml.merges", ["a b"]),
]


def tokenizer(path: Path, *entries: bytes, without: int | None = None) -> GgufTokenizer:
    kept = [entry for number, entry in enumerate(GPT2) if number != without]
    return GgufTokenizer(GgufFile(Raw(entries=[*kept, *entries], infos=[], data=b"").write(path)))


def test_end_of_text_tokens_come_from_the_file(tmp_path: Path) -> None:
    ending = [u32("tokenizer.ggml.eos_token_id", 1), parts.text("tokenizer.ggml.add_eos_token") + b"\x07\0\0\0\x01"]
    files = tokenizer(tmp_path / "a.gguf", *ending).files()
    assert Tokenizer.from_str(files["tokenizer.json"].decode()).encode("aba").ids == [2, 0, 1]


@pytest.mark.parametrize(
    ("tokens", "eot", "ends"),
    [
        (["<|return|>", "<|end|>", "<|call|>", "<|endoftext|>"], None, (0, 2, 3)),
        (["<|return|>", "<|end|>", "<|call|>", "<|endoftext|>"], 1, (0, 2, 3)),
        (["<|return|>", "<|end|>", "<|im_end|>", "<|endoftext|>"], None, (0, 2, 1)),
    ],
)
def test_in_harmony_the_end_of_a_message_does_not_end_the_turn(
    tmp_path: Path, tokens: list[str], eot: int | None, ends: tuple[int, ...]
) -> None:
    """As in llama.cpp: gpt-oss thinks in one message, and answers in the next."""
    kinds = parts.text("tokenizer.ggml.token_type") + struct.pack("<IIQ4i", 9, 5, 4, *[CONTROL] * 4)
    entries = [parts.strings("tokenizer.ggml.tokens", tokens), kinds, u32("tokenizer.ggml.eos_token_id", 0)]
    entries += [] if eot is None else [u32("tokenizer.ggml.eot_token_id", eot)]
    assert tokenizer(tmp_path / "a.gguf", *entries, without=2).ends() == ends


def test_named_templates_are_kept_by_name(tmp_path: Path) -> None:
    templates = [string("tokenizer.chat_template", "X"), string("tokenizer.chat_template.tool_use", "Y")]
    settings = json.loads(tokenizer(tmp_path / "a.gguf", *templates).files()["tokenizer_config.json"])
    wanted = [{"name": "default", "template": "X"}, {"name": "tool_use", "template": "Y"}]
    assert settings["chat_template"] == wanted


@pytest.mark.parametrize(
    ("without", "entry", "why"),
    [
        (0, string("tokenizer.ggml.model", "rwkv"), "tokenizer.ggml.model is 'rwkv'"),
        (1, string("tokenizer.ggml.pre", "brand-new"), "brand-new"),
        (1, string("tokenizer.ggml.pre", "default"), "would be a guess"),
        (1, b"", "tokenizer.ggml.pre is missing"),
        (2, parts.strings("tokenizer.ggml.tokens", ["a", "b", "ab", "a"]), "twice"),
        (2, u32("tokenizer.ggml.tokens", 4), "is no list"),
        (3, parts.strings("tokenizer.ggml.merges", ["a c"]), "no tokens"),
        (3, parts.strings("tokenizer.ggml.merges", ["ab"]), "no tokens"),
        (None, u32("tokenizer.ggml.bos_token_id", 4), "from 0 to 3"),
    ],
)
def test_unknown_and_incomplete_tokenizers_are_refused_by_name(
    tmp_path: Path, without: int | None, entry: bytes, why: str
) -> None:
    with pytest.raises(ModelError, match=why) as caught:
        tokenizer(tmp_path / "a.gguf", *([entry] if entry else []), without=without).files()
    assert "a.gguf" in str(caught.value)


def test_tiktoken_vocabularies_split_like_tokenizer_files() -> None:
    assert (SPLITTINGS["llama-bpe"], SPLITTINGS["qwen2"]) == (tiktoken.BY_FAMILY["llama"], tiktoken.BY_FAMILY["qwen3"])
