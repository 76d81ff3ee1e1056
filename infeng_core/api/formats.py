"""What readers and writers of model files may import beside ``infeng_core.api``."""

from infeng_core.files import opened, parse_json, reading
from infeng_core.formats.floats import widened
from infeng_core.formats.format_choice import ROUTER
from infeng_core.formats.hub import fetch as hub_fetch
from infeng_core.formats.hub import listing as hub_listing
from infeng_core.formats.hub_names import NAME as HUB_NAME
from infeng_core.formats.kept_integers import MXFP4_VALUES, NEAREST, halved, require_unturned
from infeng_core.formats.locators import Located, Locator
from infeng_core.formats.model_readers import Description, ModelFiles, ModelReader
from infeng_core.formats.model_readers import Source as ModelSource
from infeng_core.formats.model_writers import Export, ExportPlan, ModelWriter
from infeng_core.formats.providers import reader_of
from infeng_core.formats.quant import BUILTIN
from infeng_core.formats.quantizers import Kept, WithMinima
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
from infeng_core.formats.shards import aligned_bytes
from infeng_core.formats.splitting import LLAMA3_SPLITTING, QWEN2_SPLITTING, Splitting
from infeng_core.machine.memory import gigabytes
from infeng_core.machine.memory import require as require_memory
from infeng_core.models.families import families
from infeng_core.models.rope import inverse_frequencies
from infeng_core.models.typed_fields import Fields, show
from infeng_core.tokenizerjson.document import merges_of, read_settings, steps_of
from infeng_core.tokenizerjson.library import opened as open_tokenizer

__all__ = [
    "BUILTIN",
    "BYTE",
    "BYTE_PIECE",
    "CONTROL",
    "HUB_NAME",
    "LLAMA3_SPLITTING",
    "MXFP4_VALUES",
    "NEAREST",
    "NORMAL",
    "QWEN2_SPLITTING",
    "ROUTER",
    "SPACE",
    "UNKNOWN",
    "UNUSED",
    "USER_DEFINED",
    "Description",
    "Export",
    "ExportPlan",
    "Fields",
    "Kept",
    "Located",
    "Locator",
    "ModelFiles",
    "ModelReader",
    "ModelSource",
    "ModelWriter",
    "SentencePieceVocab",
    "Splitting",
    "WithMinima",
    "aligned_bytes",
    "families",
    "gigabytes",
    "halved",
    "hub_fetch",
    "hub_listing",
    "inverse_frequencies",
    "merges_of",
    "open_tokenizer",
    "opened",
    "parse_json",
    "read_settings",
    "reader_of",
    "reading",
    "require_memory",
    "require_unturned",
    "show",
    "steps_of",
    "widened",
]
