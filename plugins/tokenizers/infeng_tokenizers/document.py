"""tokenizer.json and tokenizer_config.json as plain data of the right types.

For most faults the ``tokenizers`` library raises an exception. Faults at which it panics (printing to standard error)
or ends the process are refused here: templates with undescribed tokens, word prefixes that merges lack, ends that are
cut off empty texts, replacements of nothing, charsmaps that point out of bounds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from infeng_core.api import ModelError
from infeng_core.api.formats import parse_json
from infeng_tokenizers.charsmap import require_sound

AGAIN = "download the file again"

MAX_ID = 2**32 - 1
"""Largest id of a token in the library."""

LISTS = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers", "post_processor": "processors",
         "decoder": "decoders"}  # fmt: skip
"""The key under which each part of a tokenizer lists its steps, if it has several."""


def read(data: bytes, path: Path) -> dict[str, Any]:
    """Return the tokenizer.json in ``data``; raises ModelError naming ``path`` and the key.

    The result is checked: a vocabulary that is a mapping has ids; merges are pairs of texts or texts; added tokens
    have texts and ids; each part and each of its steps is a mapping.
    """
    try:
        document = parse_json(data)
        _check(document)
    except ValueError as error:
        raise ModelError(f"{path}", f"not a tokenizer: {error}", AGAIN) from None
    return dict(document)


def read_settings(data: bytes, path: Path) -> dict[str, Any]:
    """Return the tokenizer_config.json in ``data``; raises ModelError naming ``path``."""
    try:
        settings = parse_json(data)
    except ValueError as error:
        raise ModelError(f"{path}", f"not valid JSON ({error})", AGAIN) from None
    if not isinstance(settings, dict):
        raise ModelError(f"{path}", "not a JSON object", AGAIN)
    if not isinstance(settings.get("add_bos_token"), bool | None):
        raise ModelError(f"{path}", "add_bos_token is neither true, false nor null", "correct it")
    return settings


def merges_of(model: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the pairs of a checked model's merges, in either notation."""
    for merge in model.get("merges") or ():
        left, _, right = merge.partition(" ") if isinstance(merge, str) else (merge[0], "", merge[1])
        yield left, right


def steps_of(part: Mapping[str, Any] | None, name: str) -> list[Mapping[str, Any]]:
    """Return the steps of a checked part: its own list, or the part alone."""
    if not part:
        return []
    return list(part[LISTS[name]]) if part.get("type") == "Sequence" else [part]


def _check(document: Any) -> None:
    """Raise ValueError for a value of the wrong type, or one that the library cannot handle."""
    if not isinstance(document, dict):
        raise ValueError("it is no mapping")
    model = _mapping(document.get("model"), "model")
    _check_model(model)
    for place, entry in enumerate(_list(document.get("added_tokens") or [], "added_tokens")):
        where = f"added_tokens[{place}]"
        entry = _mapping(entry, where)
        _text(entry.get("content"), f"{where}.content")
        _id(entry.get("id"), f"{where}.id")
    for name in LISTS:
        if document.get(name) is not None:
            _check_part(document[name], name, LISTS[name])


def _check_model(model: Mapping[str, Any]) -> None:
    if not isinstance(model.get("unk_token"), str | None):
        _fail("model.unk_token", "is no text")
    vocab = model.get("vocab")
    if isinstance(vocab, dict):
        for token, number in vocab.items():
            _id(number, f"model.vocab[{token[:40]!r}]")
    for place, merge in enumerate(_list(model.get("merges") or [], "model.merges")):
        is_pair = isinstance(merge, list) and len(merge) == 2 and all(isinstance(text, str) for text in merge)
        if not (is_pair or (isinstance(merge, str) and merge.count(" ") == 1)):
            _fail(f"model.merges[{place}]", "is no pair of texts")
    prefix = model.get("continuing_subword_prefix")
    if model.get("type") in (None, "BPE") and isinstance(prefix, str) and not _is_cut(prefix, model):
        _fail("model.continuing_subword_prefix", "does not begin the second of every pair of model.merges")


def _is_cut(prefix: str, model: Mapping[str, Any]) -> bool:
    """Return whether the second of every pair begins with ``prefix``.

    The library removes as many bytes as the prefix has letters, without comparing them.
    """
    return not prefix or (prefix.isascii() and all(right.startswith(prefix) for _, right in merges_of(model)))


def _check_part(part: Any, where: str, key: str) -> None:
    part = _mapping(part, where)
    kind = part.get("type")
    if kind == "Sequence":
        for place, step in enumerate(_list(part.get(key), f"{where}.{key}")):
            _check_part(step, f"{where}.{key}[{place}]", key)
    elif kind == "Replace" and part.get("pattern") == {"String": ""}:
        _fail(f"{where}.pattern", "is empty")
    elif kind == "Prepend" and part.get("prepend") == "":
        _fail(f"{where}.prepend", "is empty")
    elif kind == "FixedLength" and part.get("length") == 0:
        _fail(f"{where}.length", "is 0")
    elif kind == "Strip" and part.get("stop"):  # on a shorter text the library reads out of bounds
        _fail(f"{where}.stop", "is not 0")
    elif kind == "Precompiled":
        require_sound(part.get("precompiled_charsmap"), f"{where}.precompiled_charsmap")
    elif kind == "TemplateProcessing":
        _check_template(part, where)


def _check_template(part: Mapping[str, Any], where: str) -> None:
    """Raise ValueError if a template inserts a token that it does not describe."""
    described = _mapping(part.get("special_tokens"), f"{where}.special_tokens")
    for name, token in described.items():
        place = f"{where}.special_tokens[{name[:40]!r}].ids"
        for token_id in _list(_mapping(token, place).get("ids"), place):
            _id(token_id, place)
    for template in ("single", "pair"):
        for number, piece in enumerate(_list(part.get(template), f"{where}.{template}")):
            at = f"{where}.{template}[{number}]"
            if "SpecialToken" in (piece := _mapping(piece, at)):
                name = _text(_mapping(piece["SpecialToken"], at).get("id"), f"{at}.SpecialToken.id")
                if name not in described:
                    _fail(at, f"is {name[:40]!r}, which is not among its special_tokens")
            elif template == "single" and _mapping(piece.get("Sequence"), f"{at}.Sequence").get("id") != "A":
                _fail(f"{at}.Sequence.id", "is not A, the only text that there is")


def _fail(where: str, why: str) -> NoReturn:
    raise ValueError(f"{where} {why}")


def _mapping(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        _fail(where, "is no mapping")
    return value


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        _fail(where, "is no list")
    return value


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        _fail(where, "is no text")
    return value


def _id(value: Any, where: str) -> None:
    if type(value) is not int or not 0 <= value <= MAX_ID:
        _fail(where, f"is no id, a whole number from 0 to {MAX_ID}")
