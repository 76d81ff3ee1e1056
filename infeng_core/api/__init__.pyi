"""Names for every plugin, benchmark and server: errors, hooks, the engine, requests, settings, files."""

from infeng_core._native import NativeError
from infeng_core.adapters.names import BASE
from infeng_core.adapters.records import AdapterChange, AdapterInfo, AdapterTotals
from infeng_core.cli import say
from infeng_core.cli.options import add_config_options, config_from
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
    bytes_of,
    cache_root,
    model_file,
    own_file,
    read_bytes,
    read_into,
    read_json,
    read_own,
    read_text,
    require_own,
    require_trusted,
)
from infeng_core.log import get_logger
from infeng_core.machine.memory import available_bytes
from infeng_core.plug.assembly import load_config
from infeng_core.plug.hookspecs import (
    ADAPTER_READERS,
    BACKENDS,
    FILE_ERRORS,
    LOCATORS,
    POLICIES,
    TOKENIZERS,
    AdapterDirectoryFactory,
    Command,
    ConverterFactory,
    Hook,
    KernelLibrary,
    LogitProcessorFactory,
    ObserverFactory,
    PolicyFactory,
    PrefixStoreFactory,
    RunOptions,
    TokenizerFactory,
)
from infeng_core.plug.manager import Plugins
from infeng_core.plug.markers import hookimpl, hookspec
from infeng_core.plug.plugin import API_VERSION
from infeng_core.requests.output import Event, Output
from infeng_core.requests.processors import Adjustment, Forcing, LogitProcessor, LogitProcessors, Vocabulary
from infeng_core.requests.request import Adapters, Completion, Logprob, Request, SamplingParams, Timings, Usage
from infeng_core.requests.stream import Stream
from infeng_core.requests.tokenizer import Detokenizer, Tokenizer
from infeng_core.scheduling.schedulers import Load
from infeng_core.settings.config import EngineConfig
from infeng_core.version import __version__

__all__ = [
    "ADAPTER_READERS", "API_VERSION", "BACKENDS", "BASE", "FILE_ERRORS", "LOCATORS", "POLICIES", "TOKENIZERS",
    "AdapterChange", "AdapterDirectoryFactory", "AdapterError", "AdapterInfo", "AdapterTotals", "Adapters",
    "Adjustment", "Command", "Completion", "ConverterFactory", "Detokenizer", "EndedError", "Engine", "EngineConfig",
    "Event", "Forcing", "Hook", "InfengError", "KernelError", "KernelLibrary", "Load", "LogitProcessor",
    "LogitProcessorFactory", "LogitProcessors", "Logprob", "ManifestError", "ModelError", "NativeError",
    "ObserverFactory", "Output", "OverloadedError", "PluginError", "Plugins", "PolicyFactory", "PrefixStoreFactory",
    "Request", "RequestError", "ResourceError", "RunOptions", "SamplingParams", "Stream", "Timings", "Tokenizer",
    "TokenizerFactory", "Usage", "UsageError", "Vocabulary", "__version__",
    "add_config_options", "available_bytes", "bytes_of", "cache_root", "config_from", "get_logger", "hookimpl",
    "hookspec", "load_config", "model_file", "own_file", "printable", "read_bytes", "read_into", "read_json",
    "read_own", "read_text", "require_own", "require_trusted", "say", "unknown_key_remedy", "without_controls",
]  # fmt: skip
