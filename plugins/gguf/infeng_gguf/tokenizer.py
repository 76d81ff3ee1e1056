"""The tokenizer of a GGUF as the files that Hugging Face models have: tokenizer.json and tokenizer_config.json."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from infeng_core.api.formats import CONTROL, NORMAL, UNKNOWN, SentencePieceVocab, Splitting, show
from infeng_gguf.file import GgufFile
from infeng_gguf.pretokenizers import SPLITTINGS

MAX_VOCAB = 1 << 24
ENDS = ("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>")
"""How the end of a turn is spelled where the file does not number it (llama.cpp, ``llama_vocab::impl::load``)."""

MESSAGE_END = "<|end|>"
HARMONY_ENDS = ("<|return|>", "<|call|>", "<|endoftext|>")
"""What ends a turn where <|end|> ends a message alone: in vocabularies that have the first two (gpt-oss)."""

REMEDY = "use a newer conversion of the model, or its Hugging Face directory"


class GgufTokenizer:
    """What the keys ``tokenizer.*`` of a file say."""

    def __init__(self, file: GgufFile) -> None:
        """Read and check the vocabulary; raises ModelError naming the key."""
        self.file = file
        self.fields = file.fields
        self.model = self.fields.text("tokenizer.ggml.model")
        if self.model not in ("llama", "gpt2"):
            why = f"is {show(self.model)}, only llama (SentencePiece) and gpt2 (byte-level) are read"
            self.fields.fail("tokenizer.ggml.model", why, REMEDY)
        self.tokens = file.strings("tokenizer.ggml.tokens")
        self.kinds = self._kinds()
        self.ids = {token: number for number, token in enumerate(self.tokens)}
        if len(self.ids) != len(self.tokens):
            twice = next(token for number, token in enumerate(self.tokens) if self.ids[token] != number)
            self.fields.fail("tokenizer.ggml.tokens", f"holds {show(twice)} twice", REMEDY)

    @property
    def bos(self) -> int | None:
        """The token that begins a text."""
        return self._id("bos", 1 if self.model == "llama" else None)

    @property
    def eos(self) -> int | None:
        """The token that ends a text."""
        return self._id("eos", 2 if self.model == "llama" else None)

    def ends(self) -> tuple[int, ...]:
        """Return every token after which nothing is generated: of a text, a turn and a message."""
        given = [self.eos, self._id("eot"), self._id("eom")]
        if given[1] is None:
            given += map(self._control, ENDS)
        harmony = list(map(self._control, HARMONY_ENDS))
        if None not in harmony[:2]:
            inside = self._control(MESSAGE_END)
            given = [number for number in (*given, *harmony) if number != inside]
        return tuple(dict.fromkeys(number for number in given if number is not None))

    def files(self) -> dict[str, bytes]:
        """Return tokenizer.json and tokenizer_config.json; raises ModelError."""
        splitting = self._splitting() if self.model == "gpt2" else None
        document = self._byte_level(splitting) if splitting is not None else self._by_score()
        if self.fields.flag("tokenizer.ggml.add_eos_token", False) and self.eos is not None:
            document["post_processor"] = _ending(self.tokens[self.eos], self.eos)
        settings = self._settings(splitting)
        return {
            "tokenizer.json": json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode(),
            "tokenizer_config.json": json.dumps(settings, ensure_ascii=False, indent=1).encode(),
        }

    def _splitting(self) -> Splitting:
        key = "tokenizer.ggml.pre"
        name = self.fields.text(key, "default")
        if name not in SPLITTINGS:
            absent = "is missing" if not self.fields.has(key) else f"is {show(name)}, which is not known here"
            self.fields.fail(key, f"{absent}: how texts are split would be a guess", REMEDY)
        return SPLITTINGS[name]

    def _kinds(self) -> list[int]:
        count = len(self.tokens)
        if not 0 < count <= MAX_VOCAB:
            self.fields.fail("tokenizer.ggml.tokens", f"holds {count} tokens")
        if not self.fields.has("tokenizer.ggml.token_type"):
            return [NORMAL] * count
        kinds = self.file.numbers("tokenizer.ggml.token_type")
        if len(kinds) != count or kinds.dtype.kind not in "iu":
            why = f"holds {len(kinds)} items, of which each of {count} tokens needs a whole number"
            self.fields.fail("tokenizer.ggml.token_type", why)
        return [int(kind) for kind in kinds]

    def _control(self, text: str) -> int | None:
        """Return the control token with this text."""
        number = self.ids.get(text)
        return number if number is not None and self.kinds[number] == CONTROL else None

    def _id(self, name: str, default: int | None = None) -> int | None:
        key = f"tokenizer.ggml.{name}_token_id"
        if self.fields.data.get(key) == 0xFFFFFFFF:  # "none", as older tools write it
            return None
        found = self.fields.optional_integer(key, 0, len(self.tokens) - 1)
        return found if found is not None or default is None or default >= len(self.tokens) else default

    def _by_score(self) -> dict[str, Any]:
        try:
            return self._pieces().tokenizer_json()
        except ValueError as error:
            self.fields.fail("tokenizer.ggml.tokens", f"cannot be used: {error}", REMEDY)

    def _byte_level(self, splitting: Splitting) -> dict[str, Any]:
        key = "tokenizer.ggml.merges"
        merges = []
        for merge in self.file.strings(key):
            at = merge.find(" ", 1)  # a token may begin with a space, and holds none elsewhere
            left, right = merge[: max(at, 0)], merge[at + 1 :]
            if left not in self.ids or right not in self.ids or left + right not in self.ids:
                self.fields.fail(key, f"holds {show(merge)}, which are no tokens", REMEDY)
            merges.append([left, right])
        model = {"type": "BPE", "ignore_merges": splitting.whole, "vocab": self.ids, "merges": merges}
        letters = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
        return {
            "version": "1.0",
            "added_tokens": self._pieces().added_tokens(),
            **splitting.parts(),
            "post_processor": None,
            "decoder": letters,
            "model": model,
        }

    def _pieces(self) -> SentencePieceVocab:
        scores = np.zeros(len(self.tokens), np.float32)
        if self.model == "llama":
            scores = self.file.numbers("tokenizer.ggml.scores").astype(np.float32)
            if len(scores) != len(self.tokens) or not np.isfinite(scores).all():
                why = f"holds {len(scores)} items, of which each of {len(self.tokens)} tokens needs a finite one"
                self.fields.fail("tokenizer.ggml.scores", why)
        unknown = self._id("unknown", 0 if self.model == "llama" else None)
        return SentencePieceVocab(
            self.tokens,
            scores,
            self.kinds,
            unknown=None if unknown is None else self.tokens[unknown],
            prefix=self.fields.flag("tokenizer.ggml.add_space_prefix", True),
            stripping=self._stripping(),
        )

    def _stripping(self) -> frozenset[str]:
        """Return the special tokens that take the spaces behind them along: in Phi-3 all but four."""
        names = f"{self.fields.text('general.architecture', '')} {self.fields.text('general.name', '')}".lower()
        if self.model != "llama" or not ("phi3" in names or "phi-3" in names):
            return frozenset()
        special = {token for token, kind in zip(self.tokens, self.kinds, strict=True) if kind in (CONTROL, UNKNOWN)}
        return frozenset({*special, "</s>"} - {"<unk>", "<s>", "<|endoftext|>"})

    def _settings(self, splitting: Splitting | None) -> dict[str, Any]:
        adds_bos = splitting.bos if splitting is not None else True
        found: dict[str, Any] = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
            "add_bos_token": self.fields.flag("tokenizer.ggml.add_bos_token", adds_bos) and self.bos is not None,
        }
        for name, number in (("bos", self.bos), ("eos", self.eos), ("unk", self._id("unknown")),
                             ("pad", self._id("padding"))):  # fmt: skip
            if number is not None:
                found[f"{name}_token"] = self.tokens[number]
        template = self._templates()
        return found if template is None else found | {"chat_template": template}

    def _templates(self) -> str | list[dict[str, str]] | None:
        """Return the chat template, or several by name, as tokenizer_config.json has them."""
        key = "tokenizer.chat_template"
        first = self.fields.text(key) if self.fields.has(key) else None
        named = sorted(name.removeprefix(f"{key}.") for name in self.fields.data if name.startswith(f"{key}."))
        if not named:
            return first
        found = [{"name": name, "template": self.fields.text(f"{key}.{name}")} for name in named]
        return found if first is None else [{"name": "default", "template": first}, *found]


def _ending(token: str, number: int) -> dict[str, Any]:
    """Return the post-processor that puts ``token`` behind every text."""
    end = {"SpecialToken": {"id": token, "type_id": 0}}
    texts = [{"Sequence": {"id": name, "type_id": 0}} for name in "AB"]
    special = {token: {"id": token, "ids": [number], "tokens": [token]}}
    return {"type": "TemplateProcessing", "single": [texts[0], end], "pair": [*texts, end], "special_tokens": special}
