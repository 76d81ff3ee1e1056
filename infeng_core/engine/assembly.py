"""From settings to the parts of an engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infeng_core.adapters.names import base_names
from infeng_core.adapters.registry import Registry
from infeng_core.backends.interface import Backend, Executable, StreamedWeights
from infeng_core.backends.saved_prefixes import SavedPrefixes
from infeng_core.batch import Limits
from infeng_core.engine.backend_order import BackendOrder, Candidate
from infeng_core.engine.in_flight import InFlight
from infeng_core.engine.invocation_text import note_unsafe_ends
from infeng_core.formats.loader import load
from infeng_core.formats.tensors import LoadedModel
from infeng_core.kernels.choice import Selector
from infeng_core.machine.cpu import Cpu
from infeng_core.plug.hookspecs import (
    ADAPTER_DIRECTORIES,
    BACKENDS,
    DRAFTERS,
    LOGIT_PROCESSORS,
    OBSERVERS,
    POLICIES,
    PREFIX_STORES,
    TOKENIZERS,
    DrafterFactory,
    LogitProcessorFactory,
)
from infeng_core.plug.manager import Plugins
from infeng_core.plug.plugin_boundary import optional
from infeng_core.requests.defaults import recommended
from infeng_core.requests.tokenizer import Tokenizer
from infeng_core.scheduling.limits import adapters_budget, limits_of, most_resident
from infeng_core.scheduling.schedulers import Schedulers
from infeng_core.settings.config import EngineConfig
from infeng_core.telemetry.observers import Observers
from infeng_core.telemetry.startup_times import StartupTimes

if TYPE_CHECKING:
    from infeng_core.formats.adapters.packed import PackedAdapter


@dataclass(frozen=True)
class Parts:
    """The parts of an engine, loaded and bound."""

    config: EngineConfig
    cpu: Cpu
    plugins: Plugins
    selector: Selector | None  # None for a backend without kernels
    model: LoadedModel
    defaults: Mapping[str, Any]
    limits: Limits
    context_bound: str  # the setting that bounds the context, for messages
    executable: Executable
    drafter: DrafterFactory | None  # None without speculation
    tokenizer: Tokenizer
    registry: Registry
    saved: SavedPrefixes | None  # None without saved prefixes
    schedulers: Schedulers
    in_flight: InFlight
    observers: Observers

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """The tokens that end a text: the model's, or if it names none, the tokenizer's."""
        if self.model.config.eos_ids:
            return self.model.config.eos_ids
        return () if self.tokenizer.eos_id is None else (self.tokenizer.eos_id,)

    def logit_processor(self, name: str) -> LogitProcessorFactory:
        """Return the factory of a logit processor; raises PluginError with the known names."""
        return self.plugins.get(LOGIT_PROCESSORS, name)


def assemble(reference: str, config: EngineConfig, times: StartupTimes, plugins: Plugins | None = None) -> Parts:
    """Load the model ``reference`` and bind a kernel to each of its operations, each phase a lap.

    plugins: the plugins of the configuration, if they were discovered already.

    Raises ModelError, PluginError, KernelError or ResourceError.
    """
    plugins = plugins or Plugins.discover(config)
    cpu = plugins.cpu
    _require_parts(config, plugins)
    times.record("plugins")
    backends = BackendOrder(config, plugins)
    times.record("kernels")
    model = load(reference, config, plugins, streamed=_streams(backends.first.backend))
    times.record("weights", {"convert": model.conversion_seconds})
    defaults = recommended(model.tokenizer_dir)

    def compiled(one: Candidate) -> tuple[Limits, str, Executable]:
        nonlocal model
        if model.stream is not None and not _streams(one.backend):  # the one before it was passed over
            model = load(reference, config, plugins)
        return _compiled(one, model)

    (config, backend, selector), (limits, context_bound, executable) = backends.run(compiled)
    if selector is not None:
        selector.report()
        selector.close()  # all kernels are bound: no more libraries are tried
    times.record("program", {} if selector is None else {"kernels": selector.seconds})
    drafter = None if config.speculation.use == "none" else plugins.get(DRAFTERS, config.speculation.use)
    tokenizer: Tokenizer = plugins.get(TOKENIZERS, config.tokenizer.use)(model.tokenizer_dir, config)
    times.record("tokenizer")
    observers = _observers(config, plugins)
    registry = _registry(base_names(reference), config, plugins, model, backend, executable, observers, tokenizer)
    saved = _saved(config, plugins, model, executable)
    policy, restore = plugins.get(POLICIES, config.scheduler.use), None if saved is None else saved.restore
    schedulers = Schedulers(config, limits, policy, model.id, restore)
    return Parts(
        config,
        cpu,
        plugins,
        selector,
        model,
        defaults,
        limits,
        context_bound,
        executable,
        drafter,
        tokenizer,
        registry,
        saved,
        schedulers,
        InFlight(schedulers.make, config.scheduler.use, registry, schedulers.backlog, observers),
        observers,
    )


def _streams(backend: Backend) -> bool:
    """Return whether a backend takes the weights one at a time."""
    found: StreamedWeights | None = optional(backend, StreamedWeights)
    return found is not None and found.streams_weights


def _compiled(one: Candidate, model: LoadedModel) -> tuple[Limits, str, Executable]:
    """Return the limits of an engine with a backend, the setting that bounds its context, and the model compiled."""
    limits, context_bound = limits_of(one.config, model.config, one.backend)
    return limits, context_bound, one.backend.compile(model, one.config, limits, one.selector)


def _require_parts(config: EngineConfig, plugins: Plugins) -> None:
    """Raise PluginError for a part that the settings name and no plugin provides, before anything takes long."""
    wanted = [(TOKENIZERS, config.tokenizer.use), (POLICIES, config.scheduler.use)]
    wanted += [] if config.backend.order else [(BACKENDS, config.backend.use)]
    wanted += [(OBSERVERS, name) for name in config.observers.use]
    wanted += [(DRAFTERS, config.speculation.use)] if config.speculation.use != "none" else []
    for hook, name in wanted:
        plugins.provider(hook, name)


def _observers(config: EngineConfig, plugins: Plugins) -> Observers:
    """Return the observers that the configuration names; raises PluginError."""
    observers = Observers()
    for name in config.observers.use:
        observers.add(plugins.get(OBSERVERS, name)(config))
    return observers


def _registry(
    names: frozenset[str],
    config: EngineConfig,
    plugins: Plugins,
    model: LoadedModel,
    backend: Backend,
    executable: Executable,
    observers: Observers,
    tokenizer: Tokenizer,
) -> Registry:
    """Return a registry of adapters for a model; ``names`` are the base's own."""
    section = config.adapters
    cache = 0 if section.cache == "none" else section.cache

    def read(source: str, /, *, scale: float) -> PackedAdapter:
        from infeng_core.formats.adapters.load import (
            load_adapter,
        )  # a third of an engine's imports: only adapters need it

        packed = load_adapter(source, model, section.dtype, scale=scale, cache=cache, providers=plugins)
        if packed.invocation:
            note_unsafe_ends(source, packed.invocation, tokenizer)
        return packed

    budget = adapters_budget(section, backend.available_bytes(), executable.kv_bytes)
    return Registry(
        read,
        executable.load_adapter,
        most=most_resident(section, budget),
        budget=budget,
        base=names,
        directory=plugins.get(ADAPTER_DIRECTORIES, "folders")(section.directory) if section.directory else None,
        max_stacked_rank=executable.max_stacked_rank,
        load_timeout=section.load_timeout,
        observe=observers.adapter,
        workers=config.threads.nice,
    )


def _saved(config: EngineConfig, plugins: Plugins, model: LoadedModel, executable: Executable) -> SavedPrefixes | None:
    cache = config.kv_cache
    if cache.prefix_dir is None or not cache.prefix:
        return None
    factory = plugins.get(PREFIX_STORES, cache.prefix_store)
    return SavedPrefixes(factory, Path(cache.prefix_dir), cache.prefix_disk, executable, model.id)
