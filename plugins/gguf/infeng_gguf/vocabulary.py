"""Conversion of a tokenizer.json to GGUF's metadata, if GGUF can represent it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from infeng_convert.api import BYTE, BYTE_PIECE, CONTROL, NORMAL, SPACE, UNKNOWN, UNUSED, USER_DEFINED, Splitting
from infeng_tokenizers.api import merges_of, open_tokenizer, read_settings, steps_of

from infeng_core.api import ModelError
from infeng_core.api.formats import show
from infeng_gguf.pretokenizers import GPT2, SPLITTINGS

TEMPLATE_NAME = re.compile(r"[\w.-]{1,64}")
OTHER = "export with llama.cpp's convert_hf_to_gguf.py, which knows more tokenizers"
DIGIT = r"\p{N}"


def tokenizer_metadata(files: Mapping[str, bytes], rows: int, ends: tuple[int, ...], source: Path) -> dict[str, Any]:
    """Return the keys ``tokenizer.*`` for the files of a model whose embedding has ``rows`` rows.

    ends: tokens that end a generation, the end of a text first. Raises ModelError for a damaged tokenizer, or one that
    GGUF cannot represent.
    """
    if "tokenizer.json" not in files:
        raise ModelError(f"{source}", "has no tokenizer.json", "copy it from the model's page")
    document = open_tokenizer(files["tokenizer.json"], source / "tokenizer.json")[1]
    settings = read_settings(files.get("tokenizer_config.json", b"{}"), source / "tokenizer_config.json")
    return _Vocabulary(document, settings, rows, source).metadata(ends, files)


class _Vocabulary:
    def __init__(self, document: Mapping[str, Any], settings: Mapping[str, Any], rows: int, source: Path) -> None:
        """Keep files whose ids, merges and parts are already checked."""
        self.document, self.settings, self.source = document, settings, source
        self.model = document["model"]
        if self.model.get("type") != "BPE":
            self.fail(f"is a {show(self.model.get('type'))} model, only BPE is written")
        added = document.get("added_tokens") or []
        self.ids: dict[str, int] = {**self.model["vocab"], **{entry["content"]: entry["id"] for entry in added}}
        self.kinds = {entry["content"]: CONTROL if entry.get("special") else USER_DEFINED for entry in added}
        if self.model.get("unk_token") in self.kinds:
            self.kinds[self.model["unk_token"]] = UNKNOWN
        self.merges = list(merges_of(self.model))
        self.tokens = self._by_id(rows)

    def _by_id(self, rows: int) -> list[str]:
        """Return the text of each row; rows without a token get a unique placeholder."""
        by_id: dict[int, str] = {}
        for token, number in self.ids.items():
            if not 0 <= number < rows:
                self.fail(f"has the id {number}, the embedding {rows} rows")
            if by_id.setdefault(number, token) != token:
                self.fail(f"gives the id {number} to both {show(by_id[number])} and {show(token)}")
        found = [by_id.get(number, f"[PAD{number}]") for number in range(rows)]
        if len(set(found)) != rows:
            self.fail("has tokens that are named as rows without a token are in GGUF: [PAD0] and so on")
        return found

    def fail(self, why: str) -> NoReturn:
        raise ModelError(f"{self.source / 'tokenizer.json'}", why, OTHER)

    def metadata(self, ends: tuple[int, ...], files: Mapping[str, bytes]) -> dict[str, Any]:
        bytes_too = bool(self.model.get("byte_fallback"))
        found = self._pieces() if bytes_too else self._byte_level()
        types = [self._kind(token, bytes_too) for token in self.tokens]
        found["tokenizer.ggml.tokens"] = self.tokens
        found["tokenizer.ggml.token_type"] = np.array(types, np.int32)
        for key, name in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
            number = self._special(key)
            if number is not None:
                found[f"tokenizer.ggml.{name}_token_id"] = number
        eos = found.get("tokenizer.ggml.eos_token_id")
        others = [number for number in ends if number != eos]
        if eos is None and ends:
            found["tokenizer.ggml.eos_token_id"], others = ends[0], list(ends[1:])
        for name, number in zip(("eot", "eom"), others, strict=False):
            found[f"tokenizer.ggml.{name}_token_id"] = number
        found["tokenizer.ggml.add_bos_token"] = self._adds_bos()
        return found | self._templates(files)

    def _byte_level(self) -> dict[str, Any]:
        patterns = self._patterns()
        whole = bool(self.model.get("ignore_merges"))
        normalizer = self.document.get("normalizer")
        nfc = normalizer is not None and normalizer.get("type") == "NFC"
        if normalizer is not None and not nfc:
            self.fail("has a normalizer that has no name in GGUF")
        wanted = [Splitting(patterns, whole, bos, nfc) for bos in (False, True)]
        name = next((name for name, known in SPLITTINGS.items() if known in wanted), None)
        if name is None:
            self.fail("splits texts in a way that has no name in GGUF")
        if spaced := next((merge for merge in self.merges if " " in merge[0][1:]), None):
            self.fail(f"joins {show(spaced[0])} with another, a token with a space inside")
        merges = [" ".join(merge) for merge in self.merges]
        return {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": name, "tokenizer.ggml.merges": merges}

    def _patterns(self) -> tuple[str, ...]:
        """Return the patterns of the pre-tokenizer in the form of ``Splitting``."""
        found: list[str] = []
        for step in steps_of(self.document.get("pre_tokenizer"), "pre_tokenizer"):
            kind, pattern = step.get("type"), step.get("pattern")
            is_plain = step.get("behavior") == "Isolated" and not step.get("invert")
            if kind == "Split" and is_plain and isinstance(pattern, dict) and "Regex" in pattern:
                found.append(pattern["Regex"])
            elif kind == "Digits" and step.get("individual_digits"):
                found.append(DIGIT)
            elif kind == "ByteLevel" and not step.get("add_prefix_space"):
                found += [GPT2] if step.get("use_regex", True) else []
            else:
                self.fail(f"splits texts by {show(kind)}, which has no name in GGUF")
        return tuple(found)

    def _pieces(self) -> dict[str, Any]:
        """Return SentencePiece's keys: a piece's score falls with its rank among merges; unmerged pieces come last."""
        scores: dict[str, float] = {}
        for rank, (left, right) in enumerate(self.merges):
            scores.setdefault(left + right, -float(rank))
        last = -float(len(self.merges))
        values = [0.0 if token in self.kinds else scores.get(token, last) for token in self.tokens]
        return {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.pre": "default",
            "tokenizer.ggml.scores": np.array(values, np.float32),
            "tokenizer.ggml.add_space_prefix": self._puts_space(),
        }

    def _puts_space(self) -> bool:
        """Return whether a space is put before a text; fail if spaces are not pieces."""
        splitter = self.document.get("pre_tokenizer") or {}
        steps = steps_of(self.document.get("normalizer"), "normalizer")
        kinds = [step.get("type") for step in steps]
        if splitter.get("type") == "Metaspace" and not steps:
            return bool(splitter.get("prepend_scheme", "always") != "never")
        if splitter or kinds not in (["Prepend", "Replace"], ["Replace"]) or steps[-1].get("content") != SPACE:
            self.fail("normalizes texts in a way that has no name in GGUF")
        return len(kinds) == 2

    def _kind(self, token: str, bytes_too: bool) -> int:
        if token in self.kinds:
            return self.kinds[token]
        if token not in self.ids:
            return UNUSED
        return BYTE if bytes_too and BYTE_PIECE.fullmatch(token) else NORMAL

    def _special(self, name: str) -> int | None:
        entry = self.settings.get(f"{name}_token")
        text = entry.get("content") if isinstance(entry, dict) else entry
        return self.ids.get(text) if isinstance(text, str) else None

    def _adds_bos(self) -> bool:
        given = self.settings.get("add_bos_token")
        bos = self._special("bos")
        if bos is None or given is not None:
            return bool(given)
        for step in steps_of(self.document.get("post_processor"), "post_processor"):
            if step.get("type") == "TemplateProcessing" and step["single"]:
                first = step["single"][0].get("SpecialToken", {}).get("id")
                return self.ids.get(first) == bos
        return False

    def _templates(self, files: Mapping[str, bytes]) -> dict[str, Any]:
        key = "tokenizer.chat_template"
        if "chat_template.jinja" in files:
            try:
                return {key: files["chat_template.jinja"].decode()}
            except UnicodeDecodeError as error:
                why = f"not UTF-8 text (byte {error.start})"
                raise ModelError(f"{self.source / 'chat_template.jinja'}", why, "save the file as UTF-8") from None
        given = self.settings.get("chat_template")
        if given is None or isinstance(given, str):
            return {} if given is None else {key: given}
        named = dict(self._named_templates(given))
        found: dict[str, Any] = {key: named.pop("default")} if "default" in named else {}
        if named:
            found["tokenizer.chat_templates"] = sorted(named)
        return found | {f"{key}.{name}": template for name, template in named.items()}

    def _named_templates(self, given: Any) -> Iterator[tuple[str, str]]:
        for entry in given if isinstance(given, list) else [given]:
            name, template = (entry.get(key) for key in ("name", "template")) if isinstance(entry, dict) else (0, 0)
            if not isinstance(template, str) or not isinstance(name, str) or not TEMPLATE_NAME.fullmatch(name):
                why = f"chat_template holds {show(entry)}, which is no template with a name"
                raise ModelError(f"{self.source / 'tokenizer_config.json'}", why, "correct it")
            yield name, template
