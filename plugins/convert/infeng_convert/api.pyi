"""The names that plugins may import from this wheel; everything else may change without notice."""

from infeng_convert.activations import fitting
from infeng_convert.atomic import locked, replacing, require_ours
from infeng_convert.cached import cached_model
from infeng_convert.cli.options import add_conversion_options, say_converted
from infeng_convert.configs.families import config_keys
from infeng_convert.configs.model_config import parse_config
from infeng_convert.configs.multimodal import outside, prefixes
from infeng_convert.configs.shared_keys import experts, switched_windows, windows
from infeng_convert.conversion import convert, pack_checkpoint
from infeng_convert.hub import fetch as hub_fetch
from infeng_convert.hub import listing as hub_listing
from infeng_convert.huggingface import read_config
from infeng_convert.identity import conversion_key
from infeng_convert.interfaces.calibrators import (
    CalibrationSample,
    Calibrator,
    CalibratorFactory,
    Losses,
    Statistics,
    Text,
)
from infeng_convert.interfaces.hooks import CALIBRATORS, MODEL_READERS, MODEL_WRITERS, QUANTIZERS, SOURCES
from infeng_convert.interfaces.quantizers import Kept, Moments, Quantized, Quantizer, QuantTarget, Seen, WithMinima
from infeng_convert.interfaces.readers import (
    Checkpoint,
    Description,
    ModelFiles,
    ModelReader,
    ModelSource,
    ReaderLookup,
)
from infeng_convert.interfaces.sources import Source
from infeng_convert.interfaces.writers import Export, ExportPlan, ModelWriter
from infeng_convert.jsonl import DOCUMENT_KEYS, document_text
from infeng_convert.kept_integers import MXFP4_VALUES, NEAREST, halved, require_unturned
from infeng_convert.least_recent import mark_used, trim
from infeng_convert.packing import gather_vector, pack_tensor
from infeng_convert.profiles import is_inner, weights_of
from infeng_convert.providers import reader_of
from infeng_convert.quantizers import Nearest, QuantizerChoice, quantizer_of
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
from infeng_convert.tensor_files import ALIGN, Entry, write_all
from infeng_convert.tensor_files import header as tensor_header

__all__ = [
    "ALIGN",
    "BYTE",
    "BYTE_PIECE",
    "CALIBRATORS",
    "CONTROL",
    "DOCUMENT_KEYS",
    "LLAMA3_SPLITTING",
    "MODEL_READERS",
    "MODEL_WRITERS",
    "MXFP4_VALUES",
    "NEAREST",
    "NORMAL",
    "QUANTIZERS",
    "QWEN2_SPLITTING",
    "SOURCES",
    "SPACE",
    "UNKNOWN",
    "UNUSED",
    "USER_DEFINED",
    "CalibrationSample",
    "Calibrator",
    "CalibratorFactory",
    "Checkpoint",
    "Description",
    "Entry",
    "Export",
    "ExportPlan",
    "Kept",
    "Losses",
    "ModelFiles",
    "ModelReader",
    "ModelSource",
    "ModelWriter",
    "Moments",
    "Nearest",
    "QuantTarget",
    "Quantized",
    "Quantizer",
    "QuantizerChoice",
    "ReaderLookup",
    "Seen",
    "SentencePieceVocab",
    "Source",
    "Splitting",
    "Statistics",
    "Text",
    "WithMinima",
    "add_conversion_options",
    "cached_model",
    "config_keys",
    "conversion_key",
    "convert",
    "document_text",
    "experts",
    "find",
    "fitting",
    "gather_vector",
    "halved",
    "hub_fetch",
    "hub_listing",
    "is_inner",
    "locked",
    "mark_used",
    "outside",
    "pack_checkpoint",
    "pack_tensor",
    "parse_config",
    "prefixes",
    "quantizer_of",
    "read_config",
    "reader_of",
    "replacing",
    "require_ours",
    "require_unturned",
    "say_converted",
    "switched_windows",
    "tensor_header",
    "trim",
    "weights_of",
    "windows",
    "write_all",
]
