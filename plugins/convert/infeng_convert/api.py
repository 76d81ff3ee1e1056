"""The names that plugins may import from this wheel; everything else may change without notice.

``conversion`` in docs/adding-a-plugin.md says what each name is for.
"""

from infeng_convert.conversion import convert, pack_checkpoint
from infeng_convert.hub import fetch as hub_fetch
from infeng_convert.hub import listing as hub_listing
from infeng_convert.huggingface import read_config
from infeng_convert.identity import conversion_key
from infeng_convert.kept_integers import MXFP4_VALUES, NEAREST, halved, require_unturned
from infeng_convert.packing import gather_vector, pack_tensor
from infeng_convert.profiles import is_inner, weights_of
from infeng_convert.providers import reader_of
from infeng_convert.quantizers import Nearest, QuantizerChoice
from infeng_convert.sentencepiece_vocab import (
    BYTE,
    BYTE_PIECE,
    CONTROL,
    NORMAL,
    SPACE,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    SentencePieceVocab,
)
from infeng_convert.sources import find
from infeng_convert.splitting import LLAMA3_SPLITTING, QWEN2_SPLITTING, Splitting

__all__ = [
    "BYTE",
    "BYTE_PIECE",
    "CONTROL",
    "LLAMA3_SPLITTING",
    "MXFP4_VALUES",
    "NEAREST",
    "NORMAL",
    "QWEN2_SPLITTING",
    "SPACE",
    "UNKNOWN",
    "UNUSED",
    "USER_DEFINED",
    "Nearest",
    "QuantizerChoice",
    "SentencePieceVocab",
    "Splitting",
    "conversion_key",
    "convert",
    "find",
    "gather_vector",
    "halved",
    "hub_fetch",
    "hub_listing",
    "is_inner",
    "pack_checkpoint",
    "pack_tensor",
    "read_config",
    "reader_of",
    "require_unturned",
    "weights_of",
]
