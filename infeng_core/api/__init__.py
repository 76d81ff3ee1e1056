"""The names that every plugin, benchmark and server may import: errors, hooks, the engine, requests, settings, files.

The modules beside this one hold further names: ``adapters`` (readers of adapter files, packed adapters), ``engines``
(backends, schedulers, prefix stores, observers), ``formats`` (readers, writers, quantizers, the graph of a model),
``kernels`` (native objects, problems, cases, the choice of kernels) and ``servers`` (the command line and serving).
Everything else of ``infeng_core`` may change without notice.

``API_VERSION`` is the version of these modules and of the hooks. A plugin.yaml states the version that its plugin was
written for (``api: 1``); a newer one than the engine's is refused. From the first release on names are added within a
version, and the removal or a change of meaning of a name raises it.
"""

from infeng_core.api.lazy import Names

_NAMES = Names(
    __name__,
    {
        "infeng_core._native": ("NativeError",),
        "infeng_core.adapters.names": ("BASE",),
        "infeng_core.adapters.records": (
            "AdapterChange",
            "AdapterInfo",
        ),
        "infeng_core.cli": ("say",),
        "infeng_core.cli.options": (
            "add_config_options",
            "config_from",
        ),
        "infeng_core.engine": ("Engine",),
        "infeng_core.errors": (
            "AdapterError",
            "EndedError",
            "InfengError",
            "KernelError",
            "ManifestError",
            "ModelError",
            "OverloadedError",
            "PluginError",
            "RequestError",
            "ResourceError",
            "UsageError",
            "printable",
            "unknown_key_remedy",
            "without_controls",
        ),
        "infeng_core.files": (
            "cache_root",
            "model_file",
            "own_file",
            "read_bytes",
            "read_into",
            "read_json",
            "read_own",
            "read_text",
            "require_trusted",
        ),
        "infeng_core.formats.cache": ("require_own",),
        "infeng_core.jsonl": (
            "DOCUMENT_KEYS",
            "document_text",
        ),
        "infeng_core.log": ("get_logger",),
        "infeng_core.machine.memory": ("available_bytes",),
        "infeng_core.plug.assembly": ("load_config",),
        "infeng_core.plug.hookspecs": (
            "ADAPTER_READERS",
            "BACKENDS",
            "Command",
            "ConverterFactory",
            "FILE_ERRORS",
            "Hook",
            "KernelLibrary",
            "LOCATORS",
            "ObserverFactory",
            "POLICIES",
            "PolicyFactory",
            "PrefixStoreFactory",
            "RunOptions",
            "TOKENIZERS",
            "TokenizerFactory",
        ),
        "infeng_core.plug.manager": ("Plugins",),
        "infeng_core.plug.markers": (
            "hookimpl",
            "hookspec",
        ),
        "infeng_core.plug.plugin": ("API_VERSION",),
        "infeng_core.requests.hftokenizer": ("HfTokenizer",),
        "infeng_core.requests.output": (
            "Event",
            "Output",
        ),
        "infeng_core.requests.processors": (
            "Adjustment",
            "Forcing",
            "LogitProcessor",
            "LogitProcessors",
            "Vocabulary",
        ),
        "infeng_core.requests.request": (
            "Adapters",
            "Completion",
            "Logprob",
            "Request",
            "SamplingParams",
            "Timings",
            "Usage",
        ),
        "infeng_core.requests.stream": ("Stream",),
        "infeng_core.requests.tokenizer": (
            "Detokenizer",
            "Tokenizer",
        ),
        "infeng_core.scheduling.schedulers": ("Load",),
        "infeng_core.settings.config": ("EngineConfig",),
        "infeng_core.version": ("__version__",),
    },
)

__all__ = _NAMES.all()
__getattr__ = _NAMES.imported
__dir__ = _NAMES.all
homes = _NAMES.homes
