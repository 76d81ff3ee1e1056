"""Pretokenizers of byte-level vocabularies: the names of ``tokenizer.ggml.pre`` and their patterns.

The names and their grouping are those of llama.cpp (``src/llama-vocab.cpp``), the patterns those of the models'
tokenizer.json. Each pattern splits the pieces that the previous pattern left.
"""

from __future__ import annotations

from infeng_convert.api import LLAMA3_SPLITTING, QWEN2_SPLITTING, Splitting

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
SEED_CODER = _SHORT + "|" + _LETTERS + r"|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+" + _TAIL
_LOWER = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
_UPPER = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
_PATHS = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*"
TEKKEN = _LOWER + "|" + _UPPER + r"|\p{N}" + _PATHS + _TAIL
GPT4O = _LOWER + _SHORT + "?|" + _UPPER + _SHORT + r"?|\p{N}{1,3}" + _PATHS + _TAIL
DEEPSEEK3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*" + _TAIL
)

CASED = (
    "0041-005A 0061-007A 00B5 00C0-00D6 00D8-00F6 00F8-01BA 01BC-01BF 01C4-0293 0295-02AF 0370-0373 0376-0377 "
    "037B-037D 037F 0386 0388-038A 038C 038E-03A1 03A3-03F5 03F7-0481 048A-052F 0531-0556 10A0-10C5 13A0-13F5 "
    "13F8-13FD 1C90-1CBA 1CBD-1CBF 1D00-1D2B 1D6B-1D77 1D79-1D9A 1E00-1F15 1F18-1F1D 1F20-1F45 1F48-1F4D "
    "1F50-1F57 1F59 1F5B 1F5D 1F5F-1F7D 1F80-1FB4 1FB6-1FBC 1FBE 1FC2-1FC4 1FC6-1FCC 1FD0-1FD3 1FD6-1FDB "
    "1FE0-1FEC 1FF2-1FF4 1FF6-1FFC 2102 2107 210A-2113 2115 2119-211D 2124 2126 2128 212A-212D 212F-2134 2139 "
    "213C-213F 2145-2149 214E 2183-2184 2C00-2C7B 2C7E-2CE4 2CEB-2CEE 2CF2-2CF3 A640-A66D A680-A69B A722-A76F "
    "A771-A787 A78B-A78E AB70-ABBF FB00-FB06 FB13-FB17 FF21-FF3A FF41-FF5A 10400-1044F 104B0-104D3 104D8-104FB "
    "10C80-10CB2 10CC0-10CF2 118A0-118DF 1E900-1E943"
)
"""The cased letters of DeepSeek LLM's pattern in hexadecimal: those of the Unicode version of its time."""

_CASED = "".join("-".join(chr(int(end, 16)) for end in one.split("-")) for one in CASED.split())


_GPT2 = Splitting((GPT2,))
_DIGITS = Splitting((r"\p{N}", GPT2))
_LLAMA3 = Splitting(LLAMA3_SPLITTING.patterns)
_LATER_CJK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"  # includes all scripts from Samaritan on
_CJK = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"

SPLITTINGS = {
    **dict.fromkeys(("gpt-2", "phi-2", "gigachat", "a.x-4.0", "mellum", "mpt", "olmo", "jais", "trillion"), _GPT2),
    **dict.fromkeys(("exaone4", "granite-docling"), _GPT2),
    **dict.fromkeys(
        ("starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b", "mellum2"), _DIGITS
    ),
    **dict.fromkeys(("dbrx", "smaug-bpe", "glm4", "chatglm-bpe"), _LLAMA3),
    **dict.fromkeys(
        ("llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral", "midm-2.0", "lfm2", "falcon-h1"), LLAMA3_SPLITTING
    ),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez", "kormo"), QWEN2_SPLITTING),
    **dict.fromkeys(("stablelm2", "hunyuan", "grok-2", "solar-open"), Splitting(QWEN2_SPLITTING.patterns)),
    "tekken": Splitting((TEKKEN,), whole=True, bos=True),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2", "minimax-m2"), Splitting((GPT4O,))),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense"), Splitting((r"\p{N}{1,3}", _CJK, DEEPSEEK3))),
    "deepseek-coder": Splitting((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _LATER_CJK, r"\p{N}")),
    "deepseek-llm": Splitting(  # llama.cpp ends with runs of digits, but this vocabulary merges no digits
        (
            r"[\r\n]",
            rf"\s?[{_CASED}]+",
            "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
            r"\s+$",
            _LATER_CJK,
            r"\p{N}",
        )
    ),
    "seed-coder": Splitting((SEED_CODER,)),
    "falcon": Splitting((r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]")),
}
"""Name -> splitting. Other names are refused, since a wrong splitting silently gives other ids than in training."""
