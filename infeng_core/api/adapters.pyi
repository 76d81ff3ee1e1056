"""Names for readers of adapter files and for wheels that pack adapters ahead of time."""

from infeng_core.adapters.directory import AdapterDirectory
from infeng_core.adapters.names import is_name as is_adapter_name
from infeng_core.formats.adapters import tails as tail_layout
from infeng_core.formats.adapters.artifact import FILE as ARTIFACT_FILE
from infeng_core.formats.adapters.artifact import VERSION as ARTIFACT_VERSION
from infeng_core.formats.adapters.artifact import Artifact, load_artifact, read_artifact, read_pieces, shapes_of
from infeng_core.formats.adapters.bounds import MAX_INVOCATION, MAX_RANK
from infeng_core.formats.adapters.image import AdapterImage, Pieces, rotation_of
from infeng_core.formats.adapters.load import find_adapter, is_adapter
from infeng_core.formats.adapters.packed import AdapterDtype
from infeng_core.formats.adapters.readers import AdapterReader
from infeng_core.formats.adapters.snapshot import Snapshot, as_adapter_error, read_settled
from infeng_core.formats.adapters.snapshot import digest as adapter_digest
from infeng_core.formats.adapters.spec import A_FORMAT, AdapterSpec, PartSpec, stored_rank
from infeng_core.formats.adapters.stacked import folded_inputs, stacked_panels
from infeng_core.formats.adapters.target_modules import (
    EMBED,
    HEAD,
    TargetModule,
    TargetModules,
    base_tensor,
    target_modules,
)
from infeng_core.formats.loader import load as load_model
from infeng_core.formats.safetensors import Header, read_header

__all__ = [
    "ARTIFACT_FILE", "ARTIFACT_VERSION", "A_FORMAT", "EMBED", "HEAD", "MAX_INVOCATION", "MAX_RANK", "AdapterDirectory",
    "AdapterDtype", "AdapterImage", "AdapterReader", "AdapterSpec", "Artifact", "Header", "PartSpec", "Pieces",
    "Snapshot", "TargetModule", "TargetModules", "adapter_digest", "as_adapter_error", "base_tensor", "find_adapter",
    "folded_inputs", "is_adapter", "is_adapter_name", "load_artifact", "load_model", "read_artifact", "read_header",
    "read_pieces", "read_settled", "rotation_of", "shapes_of", "stacked_panels", "stored_rank", "tail_layout",
    "target_modules",
]  # fmt: skip
