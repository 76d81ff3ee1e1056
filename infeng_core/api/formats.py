"""What readers and writers of model and adapter files may import beside ``infeng_core.api``."""

from infeng_core import yamltree
from infeng_core.files import SNAPSHOTS, opened, reading
from infeng_core.formats import atomic
from infeng_core.formats.adapters.bounds import MAX_RANK
from infeng_core.formats.adapters.readers import AdapterReader
from infeng_core.formats.adapters.readers import recognizing as recognizing_adapter
from infeng_core.formats.adapters.snapshot import as_adapter_error
from infeng_core.formats.adapters.target_modules import TargetModule, target_modules
from infeng_core.formats.adapters.weights import AdapterWeights, Delta
from infeng_core.formats.artifacts import manifest as artifact_manifest
from infeng_core.formats.artifacts.manifest import FORMAT_MAJOR, FORMAT_MINOR, MANIFEST
from infeng_core.formats.artifacts.reader import read_native
from infeng_core.formats.atomic import JOURNAL
from infeng_core.formats.cache import mark_used, most_bytes, trim
from infeng_core.formats.calibrators import Statistics, Text
from infeng_core.formats.floats import widened
from infeng_core.formats.format_choice import ROUTER, is_router
from infeng_core.formats.hub_names import NAME as HUB_NAME
from infeng_core.formats.hub_names import is_name
from infeng_core.formats.locators import Located, Locator, NoWeightsError
from infeng_core.formats.model_readers import Description, ModelFiles, ModelReader, ReaderLookup
from infeng_core.formats.model_readers import Source as ModelSource
from infeng_core.formats.model_writers import Export, ExportPlan, ModelWriter
from infeng_core.formats.providers import Core, Providers
from infeng_core.formats.quant import BUILTIN, SUB_SCALED, MinimaGrid, all_over
from infeng_core.formats.quantizers import BUILT_IN, Kept, OfferedQuantizer, WithMinima
from infeng_core.formats.safetensors import FLOAT_DTYPES, SafetensorsFile, TensorInfo, as_matrix
from infeng_core.formats.shards import ALIGN, Entry, aligned_bytes, plan_shards, write_shard
from infeng_core.formats.side_files import CHAT_TEMPLATES, CONFIG_FILES, CONVERTED_TEMPLATES, TOKENIZER_FILES
from infeng_core.machine.memory import gigabytes
from infeng_core.machine.memory import require as require_memory
from infeng_core.models.families import families
from infeng_core.models.multimodal import inside, outside, prefixes
from infeng_core.models.rope import inverse_frequencies
from infeng_core.models.typed_fields import Fields, show
from infeng_core.models.weights import IGNORED, PANEL_ROWS
from infeng_core.tokenizerjson.document import merges_of, read_settings, steps_of
from infeng_core.tokenizerjson.library import opened as open_tokenizer

__all__ = [
    "ALIGN",
    "BUILTIN",
    "BUILT_IN",
    "CHAT_TEMPLATES",
    "CONFIG_FILES",
    "CONVERTED_TEMPLATES",
    "FLOAT_DTYPES",
    "FORMAT_MAJOR",
    "FORMAT_MINOR",
    "HUB_NAME",
    "IGNORED",
    "JOURNAL",
    "MANIFEST",
    "MAX_RANK",
    "PANEL_ROWS",
    "ROUTER",
    "SNAPSHOTS",
    "SUB_SCALED",
    "TOKENIZER_FILES",
    "AdapterReader",
    "AdapterWeights",
    "Core",
    "Delta",
    "Description",
    "Entry",
    "Export",
    "ExportPlan",
    "Fields",
    "Kept",
    "Located",
    "Locator",
    "MinimaGrid",
    "ModelFiles",
    "ModelReader",
    "ModelSource",
    "ModelWriter",
    "NoWeightsError",
    "OfferedQuantizer",
    "Providers",
    "ReaderLookup",
    "SafetensorsFile",
    "Statistics",
    "TargetModule",
    "TensorInfo",
    "Text",
    "WithMinima",
    "aligned_bytes",
    "all_over",
    "artifact_manifest",
    "as_adapter_error",
    "as_matrix",
    "atomic",
    "families",
    "gigabytes",
    "inside",
    "inverse_frequencies",
    "is_name",
    "is_router",
    "mark_used",
    "merges_of",
    "most_bytes",
    "open_tokenizer",
    "opened",
    "outside",
    "plan_shards",
    "prefixes",
    "read_native",
    "read_settings",
    "reading",
    "recognizing_adapter",
    "require_memory",
    "show",
    "steps_of",
    "target_modules",
    "trim",
    "widened",
    "write_shard",
    "yamltree",
]
