"""Further names that readers, writers and quantizers of models and adapters may import."""

from infeng_core import yamltree
from infeng_core.files import SNAPSHOTS, opened, parse_json, reading
from infeng_core.formats import atomic
from infeng_core.formats.adapters.artifact import is_artifact
from infeng_core.formats.artifacts import manifest as artifact_manifest
from infeng_core.formats.artifacts.manifest import FORMAT_MAJOR, FORMAT_MINOR, MANIFEST, is_native, read_manifest
from infeng_core.formats.artifacts.reader import read_native
from infeng_core.formats.atomic import JOURNAL
from infeng_core.formats.cache import cached_model, mark_used, most_bytes, trim
from infeng_core.formats.calibrators import CalibrationSample, Calibrator, Losses, Statistics, Text
from infeng_core.formats.converters import Prepared
from infeng_core.formats.floats import to_bf16, widened
from infeng_core.formats.format_choice import ROUTER, FormatChoice, by_format, choose, is_router
from infeng_core.formats.hub_names import NAME as HUB_NAME
from infeng_core.formats.hub_names import is_name
from infeng_core.formats.loader import find, locate, use_families
from infeng_core.formats.locators import Located, Locator, NoWeightsError
from infeng_core.formats.model_readers import Checkpoint, Description, ModelFiles, ModelReader, ReaderLookup
from infeng_core.formats.model_readers import Source as ModelSource
from infeng_core.formats.model_writers import Export, ExportPlan, ModelWriter
from infeng_core.formats.providers import Core, Providers
from infeng_core.formats.quant import (
    BUILTIN,
    ROW,
    SUB_SCALED,
    FormatLookup,
    Grid,
    MinimaGrid,
    QuantFormat,
    SubGrid,
    all_over,
    builtin_format,
    fitting,
)
from infeng_core.formats.quantizers import (
    BUILT_IN,
    Kept,
    Moments,
    OfferedQuantizer,
    Quantized,
    Quantizer,
    QuantTarget,
    Seen,
    WithMinima,
)
from infeng_core.formats.rotation import rotated, rotated_inputs
from infeng_core.formats.safetensors import FLOAT_DTYPES, SafetensorsFile, TensorInfo, as_matrix
from infeng_core.formats.shards import ALIGN, Entry, aligned_bytes, plan_shards, write_all, write_shard
from infeng_core.formats.shards import header as shard_header
from infeng_core.formats.side_files import CHAT_TEMPLATES, CONFIG_FILES, CONVERTED_TEMPLATES, TOKENIZER_FILES
from infeng_core.formats.sources import Source
from infeng_core.formats.tensors import LoadedModel, PackedTensor
from infeng_core.machine.memory import gigabytes
from infeng_core.machine.memory import require as require_memory
from infeng_core.models import llama
from infeng_core.models.config import ModelConfig
from infeng_core.models.families import Family, families
from infeng_core.models.multimodal import inside
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
    reads,
    writes,
)
from infeng_core.models.rope import inverse_frequencies
from infeng_core.models.rope_config import RopeConfig
from infeng_core.models.typed_fields import Fields, show
from infeng_core.models.weights import (
    IGNORED,
    PANEL_ROWS,
    ExpertNames,
    Layout,
    Part,
    TensorSpec,
    VectorSpec,
    decoder,
    layout,
)
from infeng_core.settings.config import SCHEMA, WEIGHT_FORMATS, default_of
from infeng_core.tokenizerjson.document import merges_of, read_settings, steps_of
from infeng_core.tokenizerjson.library import opened as open_tokenizer

__all__ = [
    "ALIGN", "BUILTIN", "BUILT_IN", "CHAT_TEMPLATES", "CONFIG_FILES", "CONVERTED_TEMPLATES", "FLOAT_DTYPES",
    "FORMAT_MAJOR", "FORMAT_MINOR", "HUB_NAME", "IGNORED", "JOURNAL", "MANIFEST", "PANEL_ROWS", "ROUTER", "ROW",
    "SCHEMA", "SNAPSHOTS", "SUB_SCALED", "TOKENIZER_FILES", "WEIGHT_FORMATS", "Apply", "Attention", "Bias",
    "CalibrationSample",
    "Calibrator", "Checkpoint", "Combine", "Core", "Description", "Embed", "Entry", "ExpertLinear", "ExpertNames",
    "Export", "ExportPlan", "Family", "Fields", "FormatChoice", "FormatLookup", "GatedMul", "Graph", "Grid", "Kept",
    "KvAppend", "Layout", "Linear", "LoadedModel", "Located", "Locator", "Losses", "MinimaGrid", "ModelConfig",
    "ModelFiles", "ModelReader", "ModelSource", "ModelWriter", "Moments", "NoWeightsError", "OfferedQuantizer", "Op",
    "PackedTensor", "Part", "Prepared", "Providers", "QuantFormat", "QuantTarget", "Quantized", "Quantizer",
    "ReaderLookup", "Residual", "RmsNorm", "Rope", "RopeConfig", "Route", "SafetensorsFile", "Scale", "Seen",
    "SiluMul", "Softcap", "Source", "Statistics", "SubGrid", "TensorInfo", "TensorSpec", "Text", "Value",
    "VectorSpec", "WithMinima", "aligned_bytes", "all_over", "artifact_manifest", "as_matrix", "atomic",
    "builtin_format", "by_format", "cached_model", "choose", "decoder", "default_of", "families", "find", "fitting",
    "gigabytes", "inside", "inverse_frequencies", "is_artifact", "is_name", "is_native", "is_router", "layout",
    "llama", "locate", "mark_used", "merges_of", "most_bytes", "open_tokenizer", "opened", "parse_json",
    "plan_shards", "read_manifest", "read_native", "read_settings", "reading", "reads", "require_memory", "rotated",
    "rotated_inputs", "shard_header", "show", "steps_of", "to_bf16", "trim", "use_families", "widened",
    "write_all", "write_shard", "writes", "yamltree",
]  # fmt: skip
