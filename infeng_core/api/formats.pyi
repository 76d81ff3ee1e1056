"""Further names that readers, writers and quantizers of models and adapters may import."""

from infeng_core import yamltree
from infeng_core.files import CACHE_REMEDY, SNAPSHOTS, distrusted, opened, parse_json, reading
from infeng_core.formats.adapters.artifact import is_artifact
from infeng_core.formats.artifacts import manifest as artifact_manifest
from infeng_core.formats.artifacts.manifest import (
    BUILT_IN,
    FORMAT_MAJOR,
    FORMAT_MINOR,
    MANIFEST,
    is_native,
    read_manifest,
)
from infeng_core.formats.artifacts.reader import read_native
from infeng_core.formats.converters import Prepared
from infeng_core.formats.floats import widened
from infeng_core.formats.format_choice import ROUTER, FormatChoice, choose, is_router
from infeng_core.formats.hub_names import NAME as HUB_NAME
from infeng_core.formats.hub_names import is_name
from infeng_core.formats.loader import converter_of, find, locate, use_families
from infeng_core.formats.locators import Located, Locator, NoWeightsError
from infeng_core.formats.lookup import brought_by, format_lookup
from infeng_core.formats.packing import Codes, Packer, Units, packer
from infeng_core.formats.providers import Core, Providers
from infeng_core.formats.quant import (
    BUILTIN,
    ROW,
    SUB_SCALED,
    FormatLookup,
    Grid,
    MatrixContext,
    MinimaGrid,
    QuantFormat,
    SubGrid,
    builtin_format,
    variable_formats,
)
from infeng_core.formats.quant import misfit as format_misfit
from infeng_core.formats.quant import over as format_over
from infeng_core.formats.rotation import rotated, rotated_inputs
from infeng_core.formats.safetensors import TensorInfo
from infeng_core.formats.safetensors import fail as fail_safetensors
from infeng_core.formats.safetensors import header_of as safetensors_header
from infeng_core.formats.shards import aligned_bytes
from infeng_core.formats.side_files import CHAT_TEMPLATES, CONFIG_FILES, CONVERTED_TEMPLATES, TOKENIZER_FILES
from infeng_core.formats.tensors import LoadedModel, PackedTensor
from infeng_core.machine.memory import gigabytes
from infeng_core.machine.memory import require as require_memory
from infeng_core.models import bounds as model_bounds
from infeng_core.models.config import ModelConfig, check_sizes, token_ids
from infeng_core.models.decoder import graph as decoder_graph
from infeng_core.models.families import Family, families
from infeng_core.models.families import describe as describe_families
from infeng_core.models.ops import (
    Activate,
    Apply,
    Attention,
    Bias,
    Combine,
    Embed,
    ExpertLinear,
    GatedMul,
    Graph,
    KvAppend,
    LayerNorm,
    Linear,
    Mul,
    Op,
    Residual,
    RmsNorm,
    Rope,
    Route,
    RowOp,
    RowScale,
    Scale,
    SiluMul,
    Softcap,
    Step,
    Value,
    reads,
    writes,
)
from infeng_core.models.rope import inverse_frequencies
from infeng_core.models.rope_config import RopeConfig, rope_kind, rope_parameters
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

__all__ = [
    "BUILTIN", "BUILT_IN", "CACHE_REMEDY", "CHAT_TEMPLATES", "CONFIG_FILES", "CONVERTED_TEMPLATES", "FORMAT_MAJOR",
    "FORMAT_MINOR", "HUB_NAME", "IGNORED", "MANIFEST", "PANEL_ROWS", "ROUTER", "ROW", "SCHEMA", "SNAPSHOTS",
    "SUB_SCALED", "TOKENIZER_FILES", "WEIGHT_FORMATS", "Activate", "Apply", "Attention", "Bias", "Codes", "Combine",
    "Core", "Embed", "ExpertLinear", "ExpertNames", "Family", "Fields", "FormatChoice", "FormatLookup", "GatedMul",
    "Graph", "Grid", "KvAppend", "LayerNorm", "Layout", "Linear", "LoadedModel", "Located", "Locator", "MatrixContext",
    "MinimaGrid", "ModelConfig", "Mul", "NoWeightsError", "Op", "PackedTensor", "Packer", "Part", "Prepared",
    "Providers", "QuantFormat", "Residual", "RmsNorm", "Rope", "RopeConfig", "Route", "RowOp", "RowScale", "Scale",
    "SiluMul", "Softcap", "Step", "SubGrid", "TensorInfo", "TensorSpec", "Units", "Value", "VectorSpec",
    "aligned_bytes", "artifact_manifest", "brought_by", "builtin_format", "check_sizes", "choose", "converter_of",
    "decoder", "decoder_graph", "default_of", "describe_families", "distrusted", "fail_safetensors", "families", "find",
    "format_lookup", "format_misfit", "format_over", "gigabytes", "inverse_frequencies", "is_artifact", "is_name",
    "is_native", "is_router", "layout", "locate", "model_bounds", "opened", "packer", "parse_json", "read_manifest",
    "read_native", "reading", "reads", "require_memory", "rope_kind", "rope_parameters", "rotated", "rotated_inputs",
    "safetensors_header", "show", "token_ids", "use_families", "variable_formats", "widened", "writes", "yamltree",
]  # fmt: skip
