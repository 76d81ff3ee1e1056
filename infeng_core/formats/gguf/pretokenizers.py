"""How byte-level vocabularies split a text into words: the names of ``tokenizer.ggml.pre`` and what they stand for.

The names and which of them are alike are those of llama.cpp (``src/llama-vocab.cpp``); the patterns are the ones of
the models' own tokenizer.json. Each pattern splits the pieces that the one before it left.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*"
LLAMA3 = _SHORT + "|" + _LETTERS + r"|\p{N}{1,3}" + _REST + _TAIL
QWEN2 = _SHORT + "|" + _LETTERS + r"|\p{N}" + _REST + _TAIL
_LOWER = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
_UPPER = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
_PATHS = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*"
TEKKEN = _LOWER + "|" + _UPPER + r"|\p{N}" + _PATHS + _TAIL
GPT4O = _LOWER + _SHORT + "?|" + _UPPER + _SHORT + r"?|\p{N}{1,3}" + _PATHS + _TAIL
DEEPSEEK3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*" + _TAIL
)


@dataclass(frozen=True)
class Splitting:
    """One way: ``patterns``, one after the other; ``whole``: a word that is a token is not merged from letters."""

    patterns: tuple[str, ...]
    whole: bool = False
    bos: bool = False  # whether a text begins with the beginning-of-text token where the file does not say
    nfc: bool = False  # whether texts are normalized first

    def parts(self) -> dict[str, Any]:
        """Return ``normalizer`` and ``pre_tokenizer`` of a tokenizer.json."""
        splits: list[dict[str, Any]] = [
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
            for pattern in self.patterns
        ]
        letters = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
        pre_tokenizer = {"type": "Sequence", "pretokenizers": [*splits, letters]}
        return {"normalizer": {"type": "NFC"} if self.nfc else None, "pre_tokenizer": pre_tokenizer}


_GPT2 = Splitting((GPT2,))
_DIGITS = Splitting((r"\p{N}", GPT2))
_LLAMA3 = Splitting((LLAMA3,))
_LLAMA3_WHOLE = Splitting((LLAMA3,), whole=True, bos=True)
_QWEN2 = Splitting((QWEN2,), nfc=True)
_CJK = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"

SPLITTINGS = {
    **dict.fromkeys(("gpt-2", "phi-2", "gigachat", "a.x-4.0", "mellum", "mpt", "olmo", "jais", "trillion"), _GPT2),
    **dict.fromkeys(("exaone4", "granite-docling"), _GPT2),
    **dict.fromkeys(("starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b"), _DIGITS),
    **dict.fromkeys(("dbrx", "smaug-bpe", "glm4", "chatglm-bpe"), _LLAMA3),
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral", "midm-2.0", "lfm2"), _LLAMA3_WHOLE),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez"), _QWEN2),
    **dict.fromkeys(("stablelm2", "hunyuan", "grok-2", "solar-open"), Splitting((QWEN2,))),
    "tekken": Splitting((TEKKEN,), whole=True, bos=True),
    **dict.fromkeys(("gpt-4o", "llama4"), Splitting((GPT4O,))),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense"), Splitting((r"\p{N}{1,3}", _CJK, DEEPSEEK3))),
    "deepseek-coder": Splitting(
        (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+", r"\p{N}")
    ),
    "falcon": Splitting((r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]")),
}
"""By name. Others are refused: a text would be other ids than in training, and nothing would say so."""
