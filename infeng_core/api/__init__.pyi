"""What plugins, benchmarks and servers may import of the engine; everything else may change without notice.

``API_VERSION`` is the version of this module and of the hooks. A plugin.yaml states the version that its plugin was
written for (``api: 1``); a newer one than the engine's is refused. Names are added within a version; one that is taken
away, or means something else, raises it.
"""

from infeng_core._native import (
    ABI_VERSION,
    Adapter,
    Arena,
    Epilogue,
    Kernel,
    KvCache,
    Library,
    NativeError,
    Pool,
    Problem,
    Program,
    Weight,
    pack,
    panel_bytes,
)
from infeng_core.adapters.names import BASE
from infeng_core.adapters.records import AdapterChange, AdapterInfo
from infeng_core.backends.interface import (
    Backend,
    BlockAccess,
    BoundOp,
    Executable,
    HiddenStates,
    InterruptedStepError,
    Measurable,
    Measured,
    NotFiniteError,
    OpNames,
)
from infeng_core.backends.native.executable import plan
from infeng_core.backends.native.outline import shape_and_formats
from infeng_core.backends.saved_prefixes import PrefixEntry, PrefixStore
from infeng_core.batch import (
    NOT_FINITE,
    AdapterHandle,
    AdapterRows,
    Batch,
    Limits,
    RunningRequest,
    Segment,
    adapter_rows,
)
from infeng_core.cli import emit, say
from infeng_core.cli.generation import (
    add_model_options,
    add_sampling_options,
    model_options,
    sampling_fields,
    sampling_params,
    without_words,
)
from infeng_core.cli.lora import adapters_of, add_lora_options, as_text, loras, parse_adapter, parse_lora
from infeng_core.cli.options import add_config_options, add_conversion_options, config_from, say_converted
from infeng_core.cli.parser import Parser, add_model
from infeng_core.cli.processors import processors_of, request_fields
from infeng_core.engine import Engine
from infeng_core.errors import (
    AdapterError,
    EndedError,
    InfengError,
    KernelError,
    ManifestError,
    ModelError,
    OverloadedError,
    PluginError,
    RequestError,
    ResourceError,
    UsageError,
    printable,
    unknown_key_remedy,
    without_controls,
)
from infeng_core.files import (
    cache_root,
    model_file,
    own_file,
    read_bytes,
    read_into,
    read_json,
    read_own,
    read_text,
    require_trusted,
)
from infeng_core.formats.adapters.artifact import is_artifact
from infeng_core.formats.adapters.packed import LoraPart, LoraTensor, PackedAdapter
from infeng_core.formats.adapters.stacked import unpack_stacked
from infeng_core.formats.artifacts.manifest import is_native, read_manifest
from infeng_core.formats.atomic import locked, replace_file, replacing
from infeng_core.formats.cache import cached_model, require_own
from infeng_core.formats.calibrators import CalibrationSample, Calibrator
from infeng_core.formats.conversion import convert, pack_checkpoint
from infeng_core.formats.format_choice import FormatChoice, choose
from infeng_core.formats.huggingface import read_config, side_files
from infeng_core.formats.identity import conversion_key
from infeng_core.formats.loader import find
from infeng_core.formats.model_readers import Checkpoint
from infeng_core.formats.packing import gather_vector, pack_tensor
from infeng_core.formats.profiles import Losses, is_inner, weights_of
from infeng_core.formats.quant import FormatLookup, Grid, QuantFormat, SubGrid, builtin_format, fitting
from infeng_core.formats.quantizers import Moments, Nearest, Quantized, Quantizer, QuantizerChoice, QuantTarget, Seen
from infeng_core.formats.rotation import rotated
from infeng_core.formats.shards import aligned_bytes, write_all
from infeng_core.formats.sources import Source
from infeng_core.formats.tensors import LoadedModel, PackedTensor
from infeng_core.jsonl import DOCUMENT_KEYS, document_text
from infeng_core.kernels.check.case import OneOp
from infeng_core.kernels.check.lora import A_FORMATS, RandomAdapters, a_form
from infeng_core.kernels.choice import Selector
from infeng_core.kernels.libraries import REFERENCE
from infeng_core.kernels.problems import Fields, describe, row_ranges
from infeng_core.log import get_logger, hear_others, is_json
from infeng_core.machine.cpu import NEEDS, Cpu, closure, detect
from infeng_core.machine.memory import available_bytes
from infeng_core.machine.slices import shorten_slice
from infeng_core.machine.system import machine, memory
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
from infeng_core.models.weights import ExpertNames, Layout, Part, TensorSpec, VectorSpec, decoder, layout
from infeng_core.plug import hookimpl, hookspec
from infeng_core.plug.assembly import load_config
from infeng_core.plug.hookspecs import (
    API_VERSION,
    CalibratorFactory,
    Command,
    KernelLibrary,
    ObserverFactory,
    PolicyFactory,
    PrefixStoreFactory,
    RunOptions,
    TokenizerFactory,
)
from infeng_core.plug.manager import Plugins
from infeng_core.requests.bad_words import bad_words
from infeng_core.requests.hftokenizer import HfTokenizer
from infeng_core.requests.output import Event, Output
from infeng_core.requests.parameters import SAMPLING, Parameter
from infeng_core.requests.processors import Adjustment, Forcing, LogitProcessor, LogitProcessors, Vocabulary
from infeng_core.requests.request import Adapters, Completion, Logprob, Request, SamplingParams, Timings, Usage
from infeng_core.requests.sampler import draw_seed
from infeng_core.requests.stream import Stream
from infeng_core.requests.tokenizer import Detokenizer, Tokenizer
from infeng_core.scheduling.blocks import BlockPool
from infeng_core.scheduling.cost import CostModel, StepShape
from infeng_core.scheduling.drafts import Drafter
from infeng_core.scheduling.fcfs import FirstCome
from infeng_core.scheduling.policy import Policy, Served
from infeng_core.scheduling.prefix import PrefixTree
from infeng_core.scheduling.prefix_cache import PrefixCache
from infeng_core.scheduling.scheduler import Scheduler
from infeng_core.scheduling.schedulers import Load, Schedulers
from infeng_core.scheduling.step_budget import rows_of_prompt
from infeng_core.settings.config import EngineConfig
from infeng_core.telemetry.observers import Observer, Stage, StepReport
from infeng_core.telemetry.process import Footprint, footprint, peak_rss
from infeng_core.telemetry.startup_times import StartupTimes
from infeng_core.version import __version__

__all__ = [
    "ABI_VERSION",
    "API_VERSION",
    "A_FORMATS",
    "BASE",
    "DOCUMENT_KEYS",
    "NEEDS",
    "NOT_FINITE",
    "REFERENCE",
    "SAMPLING",
    "Adapter",
    "AdapterChange",
    "AdapterError",
    "AdapterHandle",
    "AdapterInfo",
    "AdapterRows",
    "Adapters",
    "Adjustment",
    "Apply",
    "Arena",
    "Attention",
    "Backend",
    "Batch",
    "Bias",
    "BlockAccess",
    "BlockPool",
    "BoundOp",
    "CalibrationSample",
    "Calibrator",
    "CalibratorFactory",
    "Checkpoint",
    "Combine",
    "Command",
    "Completion",
    "CostModel",
    "Cpu",
    "Detokenizer",
    "Drafter",
    "Embed",
    "EndedError",
    "Engine",
    "EngineConfig",
    "Epilogue",
    "Event",
    "Executable",
    "ExpertLinear",
    "ExpertNames",
    "Family",
    "Fields",
    "FirstCome",
    "Footprint",
    "Forcing",
    "FormatChoice",
    "FormatLookup",
    "GatedMul",
    "Graph",
    "Grid",
    "HfTokenizer",
    "HiddenStates",
    "InfengError",
    "InterruptedStepError",
    "Kernel",
    "KernelError",
    "KernelLibrary",
    "KvAppend",
    "KvCache",
    "Layout",
    "Library",
    "Limits",
    "Linear",
    "Load",
    "LoadedModel",
    "LogitProcessor",
    "LogitProcessors",
    "Logprob",
    "LoraPart",
    "LoraTensor",
    "Losses",
    "ManifestError",
    "Measurable",
    "Measured",
    "ModelConfig",
    "ModelError",
    "Moments",
    "NativeError",
    "Nearest",
    "NotFiniteError",
    "Observer",
    "ObserverFactory",
    "OneOp",
    "Op",
    "OpNames",
    "Output",
    "OverloadedError",
    "PackedAdapter",
    "PackedTensor",
    "Parameter",
    "Parser",
    "Part",
    "PluginError",
    "Plugins",
    "Policy",
    "PolicyFactory",
    "Pool",
    "PrefixCache",
    "PrefixEntry",
    "PrefixStore",
    "PrefixStoreFactory",
    "PrefixTree",
    "Problem",
    "Program",
    "QuantFormat",
    "QuantTarget",
    "Quantized",
    "Quantizer",
    "QuantizerChoice",
    "RandomAdapters",
    "Request",
    "RequestError",
    "Residual",
    "ResourceError",
    "RmsNorm",
    "Rope",
    "RopeConfig",
    "Route",
    "RunOptions",
    "RunningRequest",
    "SamplingParams",
    "Scale",
    "Scheduler",
    "Schedulers",
    "Seen",
    "Segment",
    "Selector",
    "Served",
    "SiluMul",
    "Softcap",
    "Source",
    "Stage",
    "StartupTimes",
    "StepReport",
    "StepShape",
    "Stream",
    "SubGrid",
    "TensorSpec",
    "Timings",
    "Tokenizer",
    "TokenizerFactory",
    "Usage",
    "UsageError",
    "Value",
    "VectorSpec",
    "Vocabulary",
    "Weight",
    "__version__",
    "a_form",
    "adapter_rows",
    "adapters_of",
    "add_config_options",
    "add_conversion_options",
    "add_lora_options",
    "add_model",
    "add_model_options",
    "add_sampling_options",
    "aligned_bytes",
    "as_text",
    "available_bytes",
    "bad_words",
    "builtin_format",
    "cache_root",
    "cached_model",
    "choose",
    "closure",
    "config_from",
    "conversion_key",
    "convert",
    "decoder",
    "describe",
    "detect",
    "document_text",
    "draw_seed",
    "emit",
    "families",
    "find",
    "fitting",
    "footprint",
    "gather_vector",
    "get_logger",
    "hear_others",
    "hookimpl",
    "hookspec",
    "is_artifact",
    "is_inner",
    "is_json",
    "is_native",
    "layout",
    "llama",
    "load_config",
    "locked",
    "loras",
    "machine",
    "memory",
    "model_file",
    "model_options",
    "own_file",
    "pack",
    "pack_checkpoint",
    "pack_tensor",
    "panel_bytes",
    "panel_columns",
    "parse_adapter",
    "parse_lora",
    "peak_rss",
    "plan",
    "printable",
    "processors_of",
    "read_bytes",
    "read_config",
    "read_into",
    "read_json",
    "read_manifest",
    "read_own",
    "read_text",
    "reads",
    "replace_file",
    "replacing",
    "request_fields",
    "require_own",
    "require_trusted",
    "rotated",
    "row_ranges",
    "rows_of_prompt",
    "sampling_fields",
    "sampling_params",
    "say",
    "say_converted",
    "shape_and_formats",
    "shorten_slice",
    "side_files",
    "unknown_key_remedy",
    "unpack_stacked",
    "weights_of",
    "without_controls",
    "without_words",
    "write_all",
    "writes",
]
