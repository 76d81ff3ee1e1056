"""The plugins of one engine: found, filtered by processor and manifest, and queried for what they provide."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property, partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias, get_origin

from infeng_core.errors import PluginError, closest, unknown_key_remedy
from infeng_core.log import get_logger, warn_once
from infeng_core.machine.cpu import Cpu, detect
from infeng_core.plug import border, wheels
from infeng_core.plug.discovery import NAMED, Plugin, find
from infeng_core.plug.plugin import PluginManifest
from infeng_core.plug.reason import Reason
from infeng_core.settings.config import EngineConfig, default_of

if TYPE_CHECKING:
    from infeng_core.formats.adapters.readers import AdapterReader
    from infeng_core.formats.calibrators import Calibrator
    from infeng_core.formats.converters import Converter
    from infeng_core.formats.locators import Locator
    from infeng_core.formats.model_readers import ModelReader
    from infeng_core.formats.model_writers import ModelWriter
    from infeng_core.formats.quant import QuantFormat
    from infeng_core.formats.quantizers import OfferedQuantizer
    from infeng_core.formats.sources import Source
    from infeng_core.models.families import Family
    from infeng_core.plug.hooks import Hooks
    from infeng_core.plug.hookspecs import (
        Backend,
        Command,
        DrafterFactory,
        KernelLibrary,
        LogitProcessorFactory,
        ObserverFactory,
        PolicyFactory,
        PrefixStoreFactory,
        RunOptions,
        TokenizerFactory,
    )

log = get_logger(__name__)

FACES = {
    "tokenizers": "infeng_core.requests.tokenizer:Tokenizer",
    "policies": "infeng_core.scheduling.policy:Policy",
    "backends": "infeng_core.backends.interface:Backend",
    "model_families": "infeng_core.models.families:Family",
    "sources": "infeng_core.formats.sources:Source",
    "model_readers": "infeng_core.formats.model_readers:ModelReader",
    "model_writers": "infeng_core.formats.model_writers:ModelWriter",
    "converters": "infeng_core.formats.converters:Converter",
    "adapter_readers": "infeng_core.formats.adapters.readers:AdapterReader",
    "locators": "infeng_core.formats.locators:Locator",
    "drafters": "infeng_core.scheduling.drafts:Drafter",
    "logit_processors": "infeng_core.requests.processors:LogitProcessors",
    "prefix_stores": "infeng_core.backends.saved_prefixes:PrefixStore",
    "observers": "infeng_core.telemetry.observers:Observer",
    "run_options": "infeng_core.plug.hookspecs:RunOptions",
    "quant_formats": "infeng_core.formats.quant:QuantFormat",
    "quantizers": "infeng_core.formats.quantizers:Quantizer",
    "calibrators": "infeng_core.formats.calibrators:Calibrator",
}
"""The type that objects of each kind must have, imported at first use."""

_COMMAND = "infeng_core.plug.hookspecs:Command"

SINGULAR = {"model_families": "model family", "policies": "scheduler"}

FACTORIES = (
    "tokenizers", "policies", "drafters", "logit_processors", "prefix_stores", "observers", "calibrators",
    "converters",
)  # fmt: skip
"""Kinds whose hooks return factories."""


Offer: TypeAlias = "tuple[KernelLibrary, PluginManifest, Reason]"
"""A kernel library, its plugin, and whether that plugin can be used."""


class Plugins:
    """All plugins, each with its state. Their Python is imported, and their libraries mapped, only at first use."""

    def __init__(self, config: EngineConfig, cpu: Cpu, plugins: list[Plugin]) -> None:
        """Use ``discover`` instead."""
        self.config = config
        self.cpu = cpu
        self.manifests = plugins
        self._formats: dict[str, QuantFormat] = {}
        self._look_for_typos()
        for plugin in plugins:
            self._complain(plugin)

    @classmethod
    def discover(cls, config: EngineConfig | None = None, cpu: Cpu | None = None) -> Plugins:
        """Find all plugins without importing or loading any.

        Raises PluginError for two plugins of one name and, under ``kernels.strict``, for a broken one.
        """
        config = config if config is not None else EngineConfig()
        cpu = cpu if cpu is not None else detect()
        return cls(config, cpu, find(config, cpu))

    @cached_property
    def _hooks(self) -> Hooks:
        from infeng_core.plug.hooks import Hooks  # and pluggy, which listing plugins and commands does without

        return Hooks(self.manifests)

    @property
    def hook(self) -> Any:
        """The hooks of every plugin imported so far."""
        return self._hooks.relay

    def tokenizer(self, name: str) -> TokenizerFactory:
        """Return the tokenizer called ``name``; raises PluginError with the known names."""
        factory: TokenizerFactory = self._provider("tokenizers", name)
        return factory

    def policy(self, name: str) -> PolicyFactory:
        """Return the policy of the scheduler called ``name``; raises PluginError with the known names."""
        factory: PolicyFactory = self._provider("policies", name)
        return factory

    def backend(self, name: str) -> Backend:
        """Return the backend called ``name``; raises PluginError with the known names."""
        return self._provider("backends", name)

    def quant_format(self, name: str) -> QuantFormat:
        """Return the weight format called ``name``, its library opened; raises PluginError with the known names."""
        from infeng_core.formats.quant import VARIANTS

        if name not in self._formats:
            self._formats[name] = VARIANTS.get(name) or self._provider("quant_formats", name)
        return self._formats[name]

    def quantizer(self, name: str) -> OfferedQuantizer:
        """Return the quantizer called ``name``, with its identity; raises PluginError with the known names."""
        from infeng_core.formats.quantizers import OfferedQuantizer

        quantizer, plugin = self._provider("quantizers", name), self._provides("quantizers", name)
        assert plugin.manifest is not None
        known_as = getattr(quantizer, "identity", (plugin.name, plugin.manifest.version))
        if border.wrong(known_as, tuple[str, ...]) or len(known_as) != 2:
            border.Owner(plugin.name, f"quantizer {name}").fail("its identity is not a name and a version, two texts")
        maker, version = known_as
        return OfferedQuantizer(name, quantizer, maker, version, self.settings(plugin))

    def calibrator(self, name: str) -> Callable[[EngineConfig, Plugins], Calibrator]:
        """Return the factory of the calibrator called ``name``; raises PluginError with the known names."""
        factory: Callable[[EngineConfig, Plugins], Calibrator] = self._provider("calibrators", name)
        return factory

    def drafter(self, name: str) -> DrafterFactory:
        """Return the drafter called ``name``; raises PluginError with the known names."""
        factory: DrafterFactory = self._provider("drafters", name)
        return factory

    def logit_processor(self, name: str) -> LogitProcessorFactory:
        """Return the logit processor called ``name``; raises PluginError with the known names."""
        factory: LogitProcessorFactory = self._provider("logit_processors", name)
        return factory

    def prefix_store(self, name: str) -> PrefixStoreFactory:
        """Return the store of prefixes called ``name``; raises PluginError with the known names."""
        factory: PrefixStoreFactory = self._provider("prefix_stores", name)
        return factory

    def observer(self, name: str) -> ObserverFactory:
        """Return the observer called ``name``; raises PluginError with the known names."""
        factory: ObserverFactory = self._provider("observers", name)
        return factory

    def model_families(self) -> dict[str, Family]:
        """Return every family of usable plugins, the core's first; an invalid one causes a warning."""
        return dict(self._each("model_families", self.manifests))

    def sources(self) -> dict[str, Source]:
        """Return the converters of model files to Hugging Face directories; an invalid one causes a warning."""
        return dict(self._each("sources", self.manifests))

    def run_options(self) -> dict[str, RunOptions]:
        """Return every group of options that usable plugins add to the commands that generate text."""
        return dict(self._each("run_options", self.manifests))

    def model_readers(self) -> Iterator[tuple[str, ModelReader]]:
        """Yield the readers of model files with their names, the project's first, each imported at its turn."""
        own, others = self._by_origin("model_readers")
        return self._each("model_readers", [*own, *others])

    def model_writers(self) -> Iterator[tuple[str, ModelWriter]]:
        """Yield the writers of model files with their names."""
        return self._each("model_writers", self.manifests)

    def converters(self) -> Iterator[tuple[str, Callable[[EngineConfig, Plugins], Converter]]]:
        """Yield the names and factories of converters, the project's last, since it takes every model with a reader."""
        own, others = self._by_origin("converters")
        return self._each("converters", [*others, *own])

    def adapter_readers(self) -> Iterator[tuple[str, AdapterReader]]:
        """Yield the readers of adapter files with their names; each plugin is imported at its turn."""
        return self._each("adapter_readers", self.manifests)

    def locators(self) -> Iterator[tuple[str, Locator]]:
        """Yield the locators with their names, the project's last, because their names have the simplest form."""
        own, others = self._by_origin("locators")
        return self._each("locators", [*others, *own])

    def missing_wheel(self, reference: str, kind: str = "model_readers", *, is_there: bool = False) -> str:
        """Return the wheel to install for a file or a name that no present reader accepts; "" if unknown.

        kind: of the reader, "model_readers" or "adapter_readers".
        is_there: whether the reference is an existing path that is not engine-native.
        """
        parts = [part for part in (wheels.part_for(reference, kind), wheels.CONVERTER if is_there else None) if part]
        return next((wheels.remedy(*part, ()) for part in parts if part[1] not in self.names(part[0])), "")

    def _by_origin(self, kind: str) -> tuple[list[Plugin], list[Plugin]]:
        """Return the plugins that provide ``kind``: those of the project's wheels, and others."""
        found = [plugin for plugin in self.manifests if plugin.manifest and plugin.manifest.provides[kind]]
        own = [p for p in found if p.manifest and any(wheels.is_of_a_wheel(kind, n) for n in p.manifest.provides[kind])]
        return own, [plugin for plugin in found if plugin not in own]

    def _each(self, kind: str, plugins: Iterable[Plugin]) -> Iterator[tuple[str, Any]]:
        """Yield the objects of ``kind`` that ``plugins`` provide, by name; an invalid one causes a warning."""
        for plugin in plugins:
            for name in plugin.manifest.provides[kind] if plugin.usable and plugin.manifest else ():
                try:
                    found = self._provider(kind, name)
                except PluginError as error:
                    if plugin.usable:
                        self._fail(plugin, error.why)
                else:
                    yield name, found

    def answers(self, hook: Callable[..., Any]) -> dict[str, Any]:
        """Return the plugins' results for a hook that another plugin declares, by the plugins' names.

        hook: the function marked by ``hookspec``. Only plugins whose plugin.yaml lists its name under
        ``provides.hooks`` are called; one that fails causes a warning.
        """
        name = hook.__name__
        self._hooks.declare(hook)
        asked = [p for p in self.manifests if p.usable and p.manifest and name in p.manifest.provides["hooks"]]
        found = {plugin.name: self._ask(plugin, name) for plugin in asked}
        return {name: answer for name, answer in found.items() if answer is not None}

    def names(self, kind: str) -> list[str]:
        """Return the names of ``kind`` ("tokenizers", "backends", ...) that usable plugins provide by their YAML."""
        return sorted({name for p in self.manifests if p.usable and p.manifest for name in p.manifest.provides[kind]})

    def commands(self) -> dict[str, str]:
        """Return every command with its help; on a contested name the core's wins, then the plugin that sorts first."""
        result: dict[str, str] = {}
        for plugin in self.manifests:
            for name, help in plugin.manifest.commands.items() if plugin.usable and plugin.manifest else ():
                result.setdefault(name, help)
        return result

    def command(self, name: str) -> Command:
        """Import the plugin that provides command ``name`` and return the command."""
        for plugin in self.manifests:
            if plugin.usable and plugin.manifest and name in plugin.manifest.commands:
                for command in self._ask(plugin, "infeng_commands") or []:
                    if getattr(command, "name", None) == name:
                        held: Command = self._held(
                            plugin, "infeng_core.plug.hookspecs:Command", f"command {name}", command
                        )
                        return held
                if plugin.usable:
                    self._fail(plugin, f"plugin.yaml promises the command {name}, its hooks do not bring it")
                raise PluginError(f"command {name}", f"plugin {plugin.name} cannot be used", str(plugin.reason))
        raise PluginError(f"command {name}", "no plugin brings it", wheels.remedy("commands", name, self.commands()))

    def kernel_libraries(self, plugins: Iterable[Plugin] | None = None) -> list[Offer]:
        """Return every kernel library that plugins offer, unopened; of an unusable plugin, only those in its YAML."""
        return [offer for plugin in (self.manifests if plugins is None else plugins) for offer in self._offers(plugin)]

    def plugin(self, name: str) -> Plugin:
        """Return the plugin called ``name``; raises PluginError with the known names."""
        for plugin in self.manifests:
            if plugin.name == name:
                return plugin
        raise PluginError(f"plugin {name}", "not installed", unknown_key_remedy(name, [p.name for p in self.manifests]))

    def settings(self, plugin: Plugin) -> Mapping[str, Any]:
        """Return the plugin's own settings: the manifest's section of its name, with defaults from its plugin.yaml."""
        declared = plugin.manifest.settings if plugin.manifest else {}
        given = self.config.extra.get(plugin.name, {})
        return MappingProxyType({key: given.get(key, default_of(made)) for key, made in declared.items()})

    def warn(self, name: str, reason: Reason, path: Path) -> None:
        """Report why a plugin, or its library at ``path``, is not used; under ``kernels.strict`` as a PluginError."""
        remedy = reason.remedy or f"repair or uninstall it, or add {name} to plugins.disable"
        if self.config.kernels.strict:
            raise PluginError(f"plugin {name}", reason.text, remedy)
        warn_once(
            log, f"plugin {name} is not used", code=reason.code, reason=reason.text, remedy=remedy, path=str(path)
        )

    def _look_for_typos(self) -> None:
        """Warn of a name in ``plugins.disable`` that resembles a plugin's, because that plugin stays enabled.

        Any other unknown name is accepted: a manifest may serve several machines.
        """
        names = [plugin.name for plugin in self.manifests]
        for name in self.config.plugins.disable:
            if name not in names and (meant := closest(name, names)) is not None:
                where = self.config.provenance.get("plugins.disable", "argument")
                remedy = f"did you mean `{meant}`?"
                if self.config.kernels.strict:
                    raise PluginError(f"plugins.disable: {name} ({where})", "no plugin has this name", remedy)
                warn_once(log, f"plugins.disable: {name} ({where}) is ignored", remedy=remedy)

    def _offers(self, plugin: Plugin) -> list[Offer]:
        manifest = plugin.manifest
        if manifest is None:
            return []
        if not plugin.usable:
            from infeng_core.plug.hookspecs import KernelLibrary

            named = [KernelLibrary(manifest.name, manifest.library, manifest.features)] if manifest.library else []
            return [(library, manifest, plugin.reason) for library in named]
        imports = manifest.library is None and bool(manifest.kernels)
        libraries = self._ask(plugin, "infeng_kernel_libraries", imports=imports) or []
        return [(library, manifest, plugin.reason) for library in libraries]

    def _provides(self, kind: str, name: str) -> Plugin:
        """Return the plugin that claims to provide ``name``, a usable one if there is one."""
        offering = [p for p in self.manifests if p.manifest and name in p.manifest.provides[kind]]
        usable = [p for p in offering if p.usable]
        what = _called(kind, name)
        if not offering:
            raise PluginError(what, "no plugin provides it", wheels.remedy(kind, name, self.names(kind)))
        if len(usable) > 1:
            why = f"provided by several plugins: {', '.join(p.name for p in usable)}"
            raise PluginError(what, why, "list all but one in plugins.disable")
        return usable[0] if usable else offering[0]

    def _provider(self, kind: str, name: str) -> Any:
        what, plugin = _called(kind, name), self._provides(kind, name)
        found = (self._ask(plugin, f"infeng_{kind}") if plugin.usable else None) or {}
        if kind == "quant_formats" and name not in found and plugin.usable:
            found = self._formats_of(plugin, what)
        if name not in found and plugin.usable:
            library = kind == "quant_formats" and plugin.manifest and plugin.manifest.library
            who = "library does" if library else "hooks do"
            self._fail(plugin, f"plugin.yaml promises the {what}, its {who} not bring it")
        if name not in found:
            raise PluginError(what, f"plugin {plugin.name} cannot be used", str(plugin.reason))
        if kind not in FACTORIES:
            return self._held(plugin, FACES[kind], what, found[name])
        return partial(self._made, plugin, FACES[kind], what, found[name])

    def _formats_of(self, plugin: Plugin, what: str) -> dict[str, QuantFormat]:
        """Return the weight formats of the library that a plugin.yaml names; only this library is opened."""
        from infeng_core.formats.quant import brought_by
        from infeng_core.kernels.libraries import state_of

        if plugin.manifest is None or plugin.manifest.library is None:
            return {}
        state = state_of(self, plugin, plugin.manifest.library)
        if state.native is None:
            raise PluginError(what, f"library {state.name}, which brings it, is not open", str(state.reason))
        return brought_by(state.native)

    def _made(self, plugin: Plugin, face: str, what: str, factory: Any, *args: Any) -> Any:
        if plugin.name == "core":
            return factory(*args)
        try:
            made = factory(*args)
        except border.PASSING:
            raise
        except BaseException as error:
            border.Owner(plugin.name, what).blame("making it", error)
        return self._held(plugin, face, what, made)

    def _held(self, plugin: Plugin, face: str | type, what: str, value: Any) -> Any:
        """Return a plugin's object, checked unless it is the core's."""
        return value if plugin.name == "core" else border.hold(value, face, border.Owner(plugin.name, what))

    def _ask(self, plugin: Plugin, hook: str, *, imports: bool = True) -> Any:
        """Call ``hook`` of one plugin and merge the results; a plugin that fails is marked broken, and the result is
        None."""
        if imports and not self._import(plugin):
            return None
        try:
            answers = self._hooks.answers(hook, plugin.name, self.settings(plugin))
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:
            return self._fail(plugin, f"{hook}() raised {type(error).__name__}: {error}")
        owed = self._hooks.owed(hook)
        text = next((text for answer in answers if (text := border.wrong(answer, owed))), "")
        if text:
            return self._fail(plugin, f"the result of {hook}() {text}")
        if get_origin(owed) is dict:
            return {name: value for answer in answers for name, value in answer.items()}
        return [item for answer in answers for item in answer]

    def _import(self, plugin: Plugin) -> bool:
        assert plugin.manifest is not None
        module = plugin.manifest.python
        if module is None or self._hooks.has(plugin.name):
            return True
        try:
            if plugin.found.place == NAMED:
                _reach(plugin.source, module)
            imported = importlib.import_module(module)
            self._hooks.register(imported, plugin.name)
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:
            self._fail(plugin, f"importing {module} raised {type(error).__name__}: {error}")
            return False
        return True

    def _fail(self, plugin: Plugin, why: str) -> None:
        """Mark a plugin broken; the core itself must not be."""
        plugin.reason = Reason("invalid", why, "reinstall the plugin or ask its author for a repair")
        if plugin.name == "core":
            raise PluginError("plugin core", why, "reinstall infeng-core")
        self._complain(plugin)

    def _complain(self, plugin: Plugin) -> None:
        if plugin.reason.is_fault:
            self.warn(plugin.name, plugin.reason, plugin.source)
        elif not plugin.usable:
            log.debug("plugin not used", plugin=plugin.name, reason=str(plugin.reason))


def _called(kind: str, name: str) -> str:
    """Return the name of an object of a kind in messages: ``model family gpt``."""
    return f"{SINGULAR.get(kind, kind[:-1].replace('_', ' '))} {name}"


def _reach(source: Path, module: str) -> None:
    """Make a module importable that lies beside the plugin.yaml that a manifest names, or around its package."""
    top = module.partition(".")[0]
    for folder in (source.parent, source.parent.parent):
        if (folder / top).is_dir() or (folder / f"{top}.py").is_file():
            if str(folder) not in sys.path:
                sys.path.append(str(folder))  # last: it hides nothing
            return
