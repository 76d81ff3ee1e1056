"""Damages of tokenizer files: every key dropped, of another type, null, huge or twice; vocabularies of any ids."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

PLACES = 3
"""Of a long list or mapping: its first, middle and last items are damaged."""

OTHERS: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    1.5,
    1 << 31,
    (1 << 32) - 1,
    1 << 32,
    1 << 63,
    1 << 64,
    1e300,
    "",
    "x",
    "\u2581",
    "(",
    "\0",
    "\U0010ffff" * 300,
    [],
    {},
    [None],
    [[]],
    [[[]]],
    ["a"],
    [1, 2],
    {"": None},
    {"type": "BPE"},
)
"""What stands in a value's place."""

FEW: tuple[Any, ...] = (None, -1, 1 << 32, "x", [], {})
"""The same for the many items of long lists."""

MARK = "a mark that no file has"

Damage = tuple[str, bytes]


def damages(document: Any) -> Iterator[Damage]:
    """Yield (what was done, the file) for each damage of a JSON document, each file with one of them."""
    for path in _paths(document):
        where = "/".join(map(str, path)) or "."
        if path:
            yield f"{where} dropped", _changed(document, path, None, drop=True)
        deep = any(len(part) > PLACES for part in _holders(document, path))
        for other in FEW if deep else OTHERS:
            yield f"{where} = {json.dumps(other)[:40]}", _changed(document, path, lambda old, new=other: new)
        found = _at(document, path)
        if isinstance(found, list) and found:
            yield f"{where} repeated", _changed(document, path, lambda old: [*old, old[0], old[-1]])
            yield f"{where} reversed", _changed(document, path, lambda old: old[::-1])
            yield f"{where} one shorter", _changed(document, path, lambda old: old[:-1])
        if isinstance(found, dict) and len(found) > 1:
            keys = list(found)
            yield f"{where} swapped", _changed(document, path, lambda old: {**old, **_swapped(old)})
            twice = json.dumps(found)[:-1] + f", {json.dumps(keys[0])}: null}}"
            yield (
                f"{where} twice",
                _changed(document, path, lambda old: MARK).replace(json.dumps(MARK).encode(), twice.encode()),
            )


def of_bytes(data: bytes) -> Iterator[Damage]:
    """Yield damages that leave no JSON, or another encoding of it."""
    yield from {
        "empty": b"",
        "cut": data[: len(data) // 2],
        "not UTF-8": data[:-2] + b"\xff}",
        "binary": bytes(range(256)),
        "UTF-16": data.decode().encode("utf-16"),
        "a mark first": b"\xef\xbb\xbf" + data,
        "two": data + data,
        "deep": b"[" * 100000,
        "deep inside": b'{"model":' * 500 + b"1" + b"}" * 500,
        "NaN": b"NaN",
        "half a pair": b'{"model": "\\ud800"}',
        "a long number": b'{"model": ' + b"9" * 5000 + b"}",
    }.items()


def of_vocabulary(document: Any) -> Iterator[Damage]:
    """Yield tokenizer.json files whose vocabulary, merges or added tokens fit together no more."""
    vocab = document["model"]["vocab"]
    names = list(vocab)
    first, last = names[0], names[-1]
    for name, change in {
        "ids with a gap": lambda found: found | {last: len(names) + 7},
        "ids with a huge gap": lambda found: found | {last: (1 << 32) - 1},
        "ids with a gap below the limit": lambda found: found | {last: (1 << 31) - 1},
        "an id twice": lambda found: found | {last: found[first]},
        "all ids zero": lambda found: dict.fromkeys(found, 0),
        "an id below zero": lambda found: found | {first: -1},
        "an id in a text": lambda found: found | {first: "0"},
        "an id that is no whole number": lambda found: found | {first: 0.5},
        "an id that is true": lambda found: found | {first: True},
        "no tokens": lambda found: {},
        "one token": lambda found: {first: 0},
        "half of the tokens": lambda found: dict(list(found.items())[: len(found) // 2]),
        "an empty token": lambda found: found | {"": len(found)},
        "a token with a NUL": lambda found: found | {"\0": len(found)},
        "a long token": lambda found: found | {"x" * 100_000: len(found)},
        "a token of half a pair": lambda found: found | {"\ud800": len(found)},
    }.items():
        yield name, _changed(document, ("model", "vocab"), change)
    for name, merges in {
        "merges of one": [["a"]],
        "merges of three": [["a", "b", "c"]],
        "merges of numbers": [[1, 2]],
        "merges in a text": "a b",
        "merges of texts without a space": ["ab"],
        "merges of strangers": [["\x01\x02", "\x03"]],
        "empty merges": [["", ""]],
        "an empty text": [""],
        "merges of both kinds": [["a", "b"], "a b"],
        "two spaces": ["a b c"],
        "merges of mappings": [{"a": "b"}],
        "merges in a mapping": {"a": "b"},
        "nested": [[["a"], ["b"]]],
    }.items():
        yield name, _changed(document, ("model", "merges"), lambda old, new=merges: new)
    token = {
        "content": "<new>",
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }
    for name, added in {
        "an added token at a place that is taken": [token | {"id": 5}],
        "an added token far away": [token | {"id": (1 << 32) - 1}],
        "an added token beyond 32 bits": [token | {"id": 1 << 32}],
        "an added token below zero": [token | {"id": -1}],
        "an added token twice": [token | {"id": len(names)}, token | {"id": len(names) + 1}],
        "two added tokens at one place": [token | {"id": len(names)}, token | {"id": len(names), "content": "<other>"}],
        "an added token of no text": [token | {"id": len(names), "content": ""}],
        "an added token that is a number": [token | {"id": len(names), "content": 7}],
        "an added token that is a list": [[1, 2]],
        "an added token of half a pair": [token | {"id": len(names), "content": "\ud800"}],
        "added tokens in a mapping": {"<new>": len(names)},
        "an added token with a gap before it": [token | {"id": len(names) + 100}],
    }.items():
        yield name, _changed(document, ("added_tokens",), lambda old, new=added: new)


PARTS: dict[str, tuple[Any, ...]] = {
    "normalizer": (
        {"type": "Sequence", "normalizers": [None]},
        {"type": "Replace", "pattern": {"Regex": "("}, "content": ""},
        {"type": "Replace", "pattern": {"String": ""}, "content": "x"},
        {"type": "Replace", "pattern": {"Regex": ""}, "content": "x"},
        {"type": "Precompiled", "precompiled_charsmap": ""},
        {"type": "Precompiled", "precompiled_charsmap": "AAAA"},
        {"type": "Precompiled", "precompiled_charsmap": "/////wAAAAA="},
        {"type": "Precompiled", "precompiled_charsmap": "BAAAAAAAAAA="},
        {"type": "Precompiled", "precompiled_charsmap": "BAAAAP////8A"},
        {"type": "Prepend", "prepend": ""},
        {"type": "BertNormalizer"},
    ),
    "pre_tokenizer": (
        {"type": "Sequence", "pretokenizers": {}},
        {"type": "Split", "pattern": {"Regex": "["}, "behavior": "Isolated", "invert": False},
        {"type": "Split", "pattern": {"String": ""}, "behavior": "Isolated", "invert": False},
        {"type": "Split", "pattern": {"Regex": "a*"}, "behavior": "Removed", "invert": True},
        {"type": "Split", "pattern": "x", "behavior": "Isolated", "invert": False},
        {"type": "Split", "pattern": {"Regex": "(?<=(a|b)+)x"}, "behavior": "Isolated", "invert": False},
        {"type": "Metaspace", "replacement": "", "prepend_scheme": "always"},
        {"type": "Metaspace", "replacement": "ab", "prepend_scheme": "always"},
        {"type": "FixedLength", "length": 0},
        {"type": "CharDelimiterSplit", "delimiter": ""},
        {"type": "Digits"},
        {"type": "UnicodeScripts"},
    ),
    "post_processor": (
        {"type": "TemplateProcessing", "single": [], "pair": [], "special_tokens": {}},
        {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<none>", "type_id": 0}}],
            "pair": [],
            "special_tokens": {},
        },
        {
            "type": "TemplateProcessing",
            "single": [{"Sequence": {"id": "B", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "B", "type_id": 0}}],
            "special_tokens": {},
        },
        {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}],
            "pair": [],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1 << 31], "tokens": ["<s>"]}},
        },
        {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}],
            "pair": [],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [], "tokens": ["<s>"]}},
        },
        {"type": "BertProcessing", "sep": ["x", 1], "cls": ["y", 2]},
        {"type": "BertProcessing", "sep": [], "cls": []},
        {"type": "RobertaProcessing", "sep": ["x", 1], "cls": ["y", 2], "trim_offsets": True, "add_prefix_space": True},
        {"type": "Sequence", "processors": []},
    ),
    "decoder": (
        {"type": "WordPiece", "prefix": "", "cleanup": True},
        {"type": "CTC", "pad_token": "", "word_delimiter_token": "", "cleanup": True},
        {"type": "Strip", "content": " ", "start": 1 << 40, "stop": 1 << 40},
        {"type": "Strip", "content": "ab", "start": 1, "stop": 0},
        {"type": "BPEDecoder", "suffix": ""},
        {"type": "Sequence", "decoders": [{"type": "Sequence", "decoders": []}]},
        {"type": "Replace", "pattern": {"Regex": "\\"}, "content": ""},
    ),
    "truncation": (
        {"direction": "Right", "max_length": 0, "strategy": "LongestFirst", "stride": 0},
        {"direction": "Right", "max_length": 1, "strategy": "LongestFirst", "stride": 5},
        {"max_length": -1},
        7,
    ),
    "padding": (
        {
            "strategy": {"Fixed": 0},
            "direction": "Right",
            "pad_to_multiple_of": 0,
            "pad_id": 0,
            "pad_type_id": 0,
            "pad_token": "x",
        },
        {
            "strategy": {"Fixed": 1 << 40},
            "direction": "Right",
            "pad_to_multiple_of": 1 << 40,
            "pad_id": 0,
            "pad_type_id": 0,
            "pad_token": "x",
        },
        {
            "strategy": "BatchLongest",
            "direction": "Left",
            "pad_to_multiple_of": 0,
            "pad_id": 0,
            "pad_type_id": 0,
            "pad_token": "",
        },
    ),
    "model": (
        {
            "type": "WordPiece",
            "vocab": {},
            "unk_token": "x",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 0,
        },
        {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "x"},
        {"type": "Unigram", "vocab": [], "unk_id": 0},
        {"type": "Unigram", "vocab": [["a", 0.0]], "unk_id": 5},
        {"type": "Unigram", "vocab": [["", 0.0], ["a", "b"]], "unk_id": 0},
        {"type": "Unigram", "vocab": [["a", 1e400]], "unk_id": None, "byte_fallback": True},
        {"type": "Unigram", "vocab": [["a", -1e308], ["b", -1e308]], "unk_id": 0},
        {
            "type": "BPE",
            "vocab": {"a": 0, "b": 1, "ab": 2},
            "merges": [["a", "b"]],
            "continuing_subword_prefix": "####",
        },
        {
            "type": "BPE",
            "vocab": {"a": 0, "\u00e9": 1, "a\u00e9": 2},
            "merges": [["a", "\u00e9"]],
            "continuing_subword_prefix": "x",
        },
        {
            "type": "BPE",
            "vocab": {"a": 0, "b": 1, "ab": 2},
            "merges": [["a", "b"]],
            "end_of_word_suffix": "</w>",
            "unk_token": "none",
        },
        {"type": "BPE", "vocab": {"a": 0}, "merges": [], "dropout": 2.0},
        {"type": "BPE", "vocab": {"a": 0}, "merges": [], "dropout": 1.0},
        {"type": "BPE", "vocab": {"a": 1 << 31}, "merges": []},
        {"vocab": {"a": 0}, "merges": []},
        {"vocab": {}},
        {"type": "none"},
    ),
}
"""Parts that are well formed, or nearly, and cannot be used."""


def of_parts(document: Any) -> Iterator[Damage]:
    """Yield tokenizer.json files with each of ``PARTS``."""
    for part, found in PARTS.items():
        for other in found:
            yield f"{part} = {json.dumps(other)[:60]}", _changed(document, (part,), lambda old, new=other: new)


def _paths(document: Any, path: tuple[Any, ...] = (), depth: int = 6) -> Iterator[tuple[Any, ...]]:
    yield path
    if depth and isinstance(document, dict | list) and document:
        keys = list(document) if isinstance(document, dict) else list(range(len(document)))
        if len(keys) > 16:
            keys = [keys[0], keys[len(keys) // 2], keys[-1]]
        for key in keys:
            yield from _paths(document[key], (*path, key), depth - 1)


def _at(document: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        document = document[key]
    return document


def _holders(document: Any, path: tuple[Any, ...]) -> Iterator[Any]:
    for key in path:
        yield document
        document = document[key]


def _swapped(found: dict[Any, Any]) -> dict[Any, Any]:
    first, *_, last = found
    return {first: found[last], last: found[first]}


def _changed(document: Any, path: tuple[Any, ...], change: Callable[[Any], Any] | None, *, drop: bool = False) -> bytes:
    """Return the file with one place changed; what lies beside the path is shared with ``document``."""
    if not path:
        assert change is not None
        return json.dumps(change(document)).encode()
    made = copy.copy(document)
    place = made
    for key in path[:-1]:
        place[key] = copy.copy(place[key])
        place = place[key]
    if path[-1] not in place if isinstance(place, dict) else False:
        place[path[-1]] = None
    if drop:
        del place[path[-1]]
    else:
        assert change is not None
        place[path[-1]] = change(place[path[-1]])
    return json.dumps(made).encode()
