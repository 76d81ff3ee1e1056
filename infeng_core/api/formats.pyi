"""What readers, writers and quantizers of models and adapters may import beside ``infeng_core.api``."""

from infeng_core.files import opened, reading
from infeng_core.formats.adapters.artifact import is_artifact
from infeng_core.formats.adapters.bounds import MAX_RANK
from infeng_core.formats.adapters.conversion import convert_adapter
from infeng_core.formats.adapters.readers import AdapterReader
from infeng_core.formats.adapters.snapshot import as_adapter_error
from infeng_core.formats.adapters.target_modules import TargetModule, target_modules
from infeng_core.formats.adapters.weights import AdapterWeights, Delta
from infeng_core.formats.cache import cached_model
from infeng_core.formats.calibrators import CalibrationSample, Calibrator
from infeng_core.formats.conversion import convert, pack_checkpoint
from infeng_core.formats.floats import widened
from infeng_core.formats.format_choice import ROUTER, FormatChoice, choose
from infeng_core.formats.hub import fetch as hub_fetch
from infeng_core.formats.hub import listing as hub_listing
from infeng_core.formats.hub_names import NAME as HUB_NAME
from infeng_core.formats.huggingface import read_config
from infeng_core.formats.identity import conversion_key
from infeng_core.formats.kept_integers import MXFP4_VALUES, NEAREST, halved, require_unturned
from infeng_core.formats.loader import find
from infeng_core.formats.locators import Located, Locator
from infeng_core.formats.model_readers import Checkpoint, Description, ModelFiles, ModelReader
from infeng_core.formats.model_readers import Source as ModelSource
from infeng_core.formats.model_writers import Export, ExportPlan, ModelWriter
from infeng_core.formats.packing import gather_vector, pack_tensor
from infeng_core.formats.profiles import Losses, is_inner, weights_of
from infeng_core.formats.providers import reader_of
from infeng_core.formats.quant import BUILTIN, FormatLookup, Grid, QuantFormat, SubGrid, builtin_format, fitting
from infeng_core.formats.quantizers import Kept, Moments, Nearest, Quantized, Quantizer, QuantTarget, Seen, WithMinima
from infeng_core.formats.rotation import rotated
from infeng_core.formats.sentencepiece_vocab import (
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
from infeng_core.formats.shards import aligned_bytes, write_all
from infeng_core.formats.sources import Source
from infeng_core.formats.splitting import LLAMA3_SPLITTING, QWEN2_SPLITTING, Splitting
from infeng_core.formats.tensors import LoadedModel, PackedTensor
from infeng_core.machine.memory import gigabytes
from infeng_core.machine.memory import require as require_memory
from infeng_core.models import llama
from infeng_core.models.config import ModelConfig, RopeConfig
from infeng_core.models.families import Family, families
from infeng_core.models.ops import (
    Apply,
    Attention,
    Bias,
    Combine,
    Embed,
    ExpertLinear,
    GatedMul,
    Graph,
    KvAppend,
    Linear,
    Op,
    Residual,
    RmsNorm,
    Rope,
    Route,
    Scale,
    SiluMul,
    Softcap,
    Value,
    panel_columns,
    reads,
    writes,
)
from infeng_core.models.rope import inverse_frequencies
from infeng_core.models.typed_fields import Fields, show
from infeng_core.models.weights import ExpertNames, Layout, Part, TensorSpec, VectorSpec, decoder, layout
from infeng_core.tokenizerjson.document import merges_of, read_settings, steps_of
from infeng_core.tokenizerjson.library import opened as open_tokenizer

__all__ = [
    "BUILTIN",
    "BYTE",
    "BYTE_PIECE",
    "CONTROL",
    "HUB_NAME",
    "LLAMA3_SPLITTING",
    "MAX_RANK",
    "MXFP4_VALUES",
    "NEAREST",
    "NORMAL",
    "QWEN2_SPLITTING",
    "ROUTER",
    "SPACE",
    "UNKNOWN",
    "UNUSED",
    "USER_DEFINED",
    "AdapterReader",
    "AdapterWeights",
    "Apply",
    "Attention",
    "Bias",
    "CalibrationSample",
    "Calibrator",
    "Checkpoint",
    "Combine",
    "Delta",
    "Description",
    "Embed",
    "ExpertLinear",
    "ExpertNames",
    "Export",
    "ExportPlan",
    "Family",
    "Fields",
    "FormatChoice",
    "FormatLookup",
    "GatedMul",
    "Graph",
    "Grid",
    "Kept",
    "KvAppend",
    "Layout",
    "Linear",
    "LoadedModel",
    "Located",
    "Locator",
    "Losses",
    "ModelConfig",
    "ModelFiles",
    "ModelReader",
    "ModelSource",
    "ModelWriter",
    "Moments",
    "Nearest",
    "Op",
    "PackedTensor",
    "Part",
    "QuantFormat",
    "QuantTarget",
    "Quantized",
    "Quantizer",
    "Residual",
    "RmsNorm",
    "Rope",
    "RopeConfig",
    "Route",
    "Scale",
    "Seen",
    "SentencePieceVocab",
    "SiluMul",
    "Softcap",
    "Source",
    "Splitting",
    "SubGrid",
    "TargetModule",
    "TensorSpec",
    "Value",
    "VectorSpec",
    "WithMinima",
    "aligned_bytes",
    "as_adapter_error",
    "builtin_format",
    "cached_model",
    "choose",
    "conversion_key",
    "convert",
    "convert_adapter",
    "decoder",
    "families",
    "find",
    "fitting",
    "gather_vector",
    "gigabytes",
    "halved",
    "hub_fetch",
    "hub_listing",
    "inverse_frequencies",
    "is_artifact",
    "is_inner",
    "layout",
    "llama",
    "merges_of",
    "open_tokenizer",
    "opened",
    "pack_checkpoint",
    "pack_tensor",
    "panel_columns",
    "read_config",
    "read_settings",
    "reader_of",
    "reading",
    "reads",
    "require_memory",
    "require_unturned",
    "rotated",
    "show",
    "steps_of",
    "target_modules",
    "weights_of",
    "widened",
    "write_all",
    "writes",
]
