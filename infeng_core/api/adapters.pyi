"""Names for readers of adapter files and for wheels that pack adapters ahead of time."""

from infeng_core.formats.adapters.artifact import FILE as ARTIFACT_FILE
from infeng_core.formats.adapters.artifact import Artifact, read_artifact, write_artifact
from infeng_core.formats.adapters.artifact import describe as describe_artifact
from infeng_core.formats.adapters.bounds import MAX_RANK
from infeng_core.formats.adapters.load import find_adapter
from infeng_core.formats.adapters.packed import AdapterDtype
from infeng_core.formats.adapters.packing import pack as pack_adapter
from infeng_core.formats.adapters.range_check import check_range
from infeng_core.formats.adapters.readers import AdapterReader
from infeng_core.formats.adapters.readers import recognizing as recognizing_adapter
from infeng_core.formats.adapters.snapshot import Snapshot, as_adapter_error, read_settled
from infeng_core.formats.adapters.survey import AdapterSurvey, survey_adapter
from infeng_core.formats.adapters.target_modules import TargetModule, TargetModules, target_modules
from infeng_core.formats.adapters.weights import AdapterWeights, Delta
from infeng_core.formats.loader import load as load_model
from infeng_core.formats.safetensors import Header, read_header
from infeng_core.models.multimodal import outside, prefixes

__all__ = [
    "ARTIFACT_FILE",
    "MAX_RANK",
    "AdapterDtype",
    "AdapterReader",
    "AdapterSurvey",
    "AdapterWeights",
    "Artifact",
    "Delta",
    "Header",
    "Snapshot",
    "TargetModule",
    "TargetModules",
    "as_adapter_error",
    "check_range",
    "describe_artifact",
    "find_adapter",
    "load_model",
    "outside",
    "pack_adapter",
    "prefixes",
    "read_artifact",
    "read_header",
    "read_settled",
    "recognizing_adapter",
    "survey_adapter",
    "target_modules",
    "write_artifact",
]
