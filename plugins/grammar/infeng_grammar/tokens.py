"""The engine's tokens in llguidance's form, and the masks of tokens that a constrained text may hold."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from infeng_tokenizers.api import HfTokenizer
from llguidance import LLTokenizer
from numpy.typing import NDArray

from infeng_core.api import RequestError, Vocabulary, model_file, read_bytes


class Tokens:
    """One engine's tokens."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Read the model's tokenizer.json; raises RequestError without one, or without an end-of-text token."""
        if not isinstance(vocabulary.tokenizer, HfTokenizer):
            why = "the engine's tokenizer does not give the text of its tokens"
            raise RequestError("grammar", why, "use the model's tokenizer.json (tokenizer.use: hf)")
        if not vocabulary.ends:
            why = "the model has no end-of-text token, and a constrained text needs one"
            raise RequestError("grammar", why, "set eos_token_id in its config.json")
        self.ends = vocabulary.ends
        self.vocabulary = vocabulary
        known = vocabulary.tokenizer.vocab_size
        self.size = max(vocabulary.size, known)
        """Bits of llguidance's masks, which are (ceil(size / 32),) uint32."""
        self.library = self._read(vocabulary)
        self.end_mask = vocabulary.mask(self.ends)
        """(ceil(vocabulary.size / 32),) uint32: the end-of-text tokens."""
        is_special = self.library.is_special_token
        texts = [id_ for id_ in range(min(vocabulary.size, known)) if id_ not in self.ends]
        self._known_mask = vocabulary.mask(texts)
        self.text_mask = vocabulary.mask(id_ for id_ in texts if not is_special(id_))
        """(ceil(vocabulary.size / 32),) uint32: the tokens that a constrained text may hold."""
        self._spelt: list[bytes] = []

    def _read(self, vocabulary: Vocabulary) -> LLTokenizer:
        path = vocabulary.directory / "tokenizer.json"
        try:
            document = json.loads(read_bytes(model_file(vocabulary.directory, path.name)))
            self._special = hide_special(document)
            return LLTokenizer(json.dumps(document), n_vocab=self.size, eos_token=list(self.ends))
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # llguidance's panics are not of class Exception
            why = f"the text of its tokens cannot be read ({error})"
            raise RequestError(
                f"grammar with {path}", why, "use a model with a byte-level or byte-fallback BPE"
            ) from None

    def spelt(self) -> list[bytes]:
        """Return the bytes of every token: of a special token its name, of an end-of-text token none."""
        if not self._spelt:
            decode, special = self.library.decode_bytes, self._special
            found = [special[id_].encode() if id_ in special else bytes(decode([id_])) for id_ in range(self.size)]
            self._spelt = [b"" if id_ in self.ends else spelt for id_, spelt in enumerate(found)]
        return self._spelt

    def mask_without(self, ids: list[int]) -> NDArray[np.uint32]:
        """Return the mask of all tokens except ``ids`` and the end-of-text tokens."""
        size = self.vocabulary.size
        return self._known_mask & ~self.vocabulary.mask(id_ for id_ in ids if id_ < size)


def hide_special(document: dict[str, Any]) -> dict[int, str]:
    """Rename the special tokens of a tokenizer.json to names that no text contains; return the original names by id.

    llguidance tokenizes forced text with this tokenizer, and a text such as ``</s>`` within a schema must not become
    the special token of that name.
    """
    special = {entry["id"]: entry["content"] for entry in document["added_tokens"] if entry["special"]}
    hidden = {content: f"\ue000{id_}\ue001" for id_, content in special.items()}
    for entry in document["added_tokens"]:
        entry["content"] = hidden.get(entry["content"], entry["content"])
    model = document["model"]
    model["vocab"] = {hidden.get(content, content): id_ for content, id_ in model["vocab"].items()}
    model["unk_token"] = hidden.get(model.get("unk_token"), model.get("unk_token"))
    return special
