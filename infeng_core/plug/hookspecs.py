"""Every hook of the engine. Hooks are called while an engine or the command line is assembled, never per token.

An implementation is a function ``infeng_KIND``, marked with ``hookimpl``; it returns plain data, and the modules behind
it are imported at their use. Built-ins (``infeng_core.builtin``) use the same hooks. It may take the argument
``settings``: the plugin's own, from the manifest section of its name.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar

from infeng_core._native import NativeError
from infeng_core.record import Record

if TYPE_CHECKING:
    import argparse

    from infeng_core.formats.adapters.readers import AdapterReader
    from infeng_core.formats.locators import Locator
    from infeng_core.formats.quant import QuantFormat
    from infeng_core.kernels.checks import KernelCheck
    from infeng_core.models.families import Family

T = TypeVar("T")

TokenizerFactory = Callable[..., Any]
"""Called as ``factory(directory: Path, config: EngineConfig)``; returns an ``infeng_core.api.Tokenizer``."""
PolicyFactory = Callable[..., Any]
"""Called as ``factory(limits: Limits)``; returns an ``infeng_core.api.Policy``, the order of work of a scheduler."""
DrafterFactory = Callable[..., Any]
"""Called as ``factory(prompt: Sequence[int])`` for each request; returns an ``infeng_core.api.Drafter``."""
LogitProcessorFactory = Callable[..., Any]
"""Called once by an engine as ``factory(vocabulary: Vocabulary)``; returns an ``infeng_core.api.LogitProcessors``."""
PrefixStoreFactory = Callable[..., Any]
"""Called as ``factory(directory: Path, identity: str, block_bytes: int, most_bytes: int)``; returns an
``infeng_core.api.PrefixStore``."""
ObserverFactory = Callable[..., Any]
"""Called as ``factory(config: EngineConfig)``; returns an ``infeng_core.api.Observer``."""
AdapterDirectoryFactory = Callable[..., Any]
"""Called as ``factory(places: tuple[str, ...])``; returns an ``infeng_core.api.adapters.AdapterDirectory``. Raises
AdapterError."""
ConverterFactory = Callable[..., Any]
"""Called for each model that is not engine-native as ``factory(config: EngineConfig, plugins: Plugins)``; returns an
``infeng_core.api.Converter``."""
Backend = Any
"""An ``infeng_core.backends.interface.Backend``."""


class KernelLibrary(Record):
    """A shared object that exports ``infeng_library``."""

    name: str
    path: Path
    features: tuple[str, ...] = ()  # CPU features without which it must not even be mapped


class Command(Protocol):
    """A command of `infeng`, by its name."""

    name: str
    help: str

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's arguments."""

    def run(self, arguments: argparse.Namespace) -> int:
        """Run the command; return the exit status. The caller prints InfengError."""


class RunOptions:
    """Options that a plugin adds to the commands that generate text: ``run``, ``chat`` and ``ask``.

    A plugin's class derives from this one and overrides the methods that it needs. ``arguments`` are the command's.
    """

    def add(self, parser: argparse.ArgumentParser, command: str) -> None:
        """Add the options to the parser of the command named ``command``."""

    def processors(self, arguments: argparse.Namespace) -> Sequence[tuple[str, object]]:
        """Return the logit processors that the options select, each with its argument; raises UsageError."""
        return ()

    def fields(self, arguments: argparse.Namespace) -> Mapping[str, object]:
        """Return the same choice as fields of a request to a server; raises UsageError."""
        return {}

    def run(self, arguments: argparse.Namespace, prompts: Callable[[], Sequence[str]]) -> int | None:
        """Answer in place of an engine and return the exit status, or None to leave it to the command ``run``.

        prompts: returns the prompts; reads standard input if the command line asks for it.
        """
        return None

    def around(self, arguments: argparse.Namespace, engine: Any) -> AbstractContextManager[None]:
        """Return a context in which the command ``run`` generates with its Engine; raises UsageError."""
        return nullcontext()


FILE_ERRORS: tuple[type[BaseException], ...] = (OSError, MemoryError)
"""Errors of the system that parts that read files may raise."""


class Hook(Record, Generic[T]):
    """A hook through which plugins provide parts of one kind; T is the type of what it returns for each part.

    A hook that gives "parts" or "factories" returns them by name; plugin.yaml lists these names under
    ``provides``. A hook that gives a "list" returns parts without names. A wheel may declare hooks of its own.
    """

    kind: str  # the key in ``provides``; the function that implements the hook is ``infeng_`` and this word
    singular: str  # one part in messages: "tokenizer"
    interface: str  # "module:name" of the type of a part, imported at first use
    gives: Literal["parts", "factories", "list"]
    own: Literal["first", "last", "anywhere"] = "anywhere"  # place of the project's wheels in the order of plugins
    raises: tuple[type[BaseException], ...] = ()  # besides the project's errors

    @property
    def name(self) -> str:
        """The name of the function that implements it: ``infeng_tokenizers``."""
        return f"infeng_{self.kind}"

    def face(self) -> type:
        """Return the type of a part."""
        module, _, name = self.interface.partition(":")
        found: type = getattr(importlib.import_module(module), name)
        return found

    def answer(self) -> Any:
        """Return the annotation of what the hook returns; parts are checked further when they are used."""
        if self.gives == "list":
            return list[self.face()]  # type: ignore[misc]  # a type of run time
        part: Any = Callable[..., Any] if self.gives == "factories" else Any
        return dict[str, part]


KERNEL_LIBRARIES: Hook[KernelLibrary] = Hook("kernel_libraries", "kernel library", f"{__name__}:KernelLibrary", "list")
"""Kernel libraries that a plugin's YAML cannot name, such as one found at run time."""
KERNEL_CHECKS: Hook[KernelCheck] = Hook(
    "kernel_checks", "kernel check", "infeng_core.kernels.checks:KernelCheck", "parts", own="first", raises=FILE_ERRORS
)
"""What tries a kernel library before it is mapped and a kernel before it is used, by name; the first one does."""
TOKENIZERS: Hook[TokenizerFactory] = Hook(
    "tokenizers", "tokenizer", "infeng_core.requests.tokenizer:Tokenizer", "factories"
)
"""Tokenizers by the name that ``tokenizer.use`` selects."""
POLICIES: Hook[PolicyFactory] = Hook("policies", "scheduler", "infeng_core.scheduling.policy:Policy", "factories")
"""Schedulers by the name that ``scheduler.use`` selects."""
QUANT_FORMATS: Hook[QuantFormat] = Hook(
    "quant_formats",
    "quant format",
    "infeng_core.formats.quant:QuantFormat",
    "parts",
    raises=(NativeError,),  # for values that a format cannot hold
)
"""Weight formats by the name that ``model.format`` selects."""
BACKENDS: Hook[Backend] = Hook("backends", "backend", "infeng_core.backends.interface:Backend", "parts")
"""Backends by the name that ``backend.use`` selects."""
MODEL_FAMILIES: Hook[Family] = Hook("model_families", "model family", "infeng_core.models.families:Family", "parts")
"""Model families by the ``model_type`` of their config.json."""
CONVERTERS: Hook[ConverterFactory] = Hook(
    "converters",
    "converter",
    "infeng_core.formats.converters:Converter",
    "factories",
    own="last",  # it takes every model with a reader
    raises=FILE_ERRORS,
)
"""Converters by name; the first that recognizes a model prepares the engine-native one that is loaded."""
ADAPTER_READERS: Hook[AdapterReader] = Hook(
    "adapter_readers", "adapter reader", "infeng_core.formats.adapters.readers:AdapterReader", "parts"
)
"""Readers of adapter files by name; the first that recognizes a path packs the adapter."""
ADAPTER_DIRECTORIES: Hook[AdapterDirectoryFactory] = Hook(
    "adapter_directories", "adapter directory", "infeng_core.adapters.directory:AdapterDirectory", "factories"
)
"""Makers of the places that ``adapters.directory`` names, by name; the engine asks for ``folders``."""
LOCATORS: Hook[Locator] = Hook(
    "locators",
    "locator",
    "infeng_core.formats.locators:Locator",
    "parts",
    own="last",  # the hub's names have the simplest form
    raises=FILE_ERRORS,
)
"""Locators of models and adapters by name, for references other than local paths."""
DRAFTERS: Hook[DrafterFactory] = Hook("drafters", "drafter", "infeng_core.scheduling.drafts:Drafter", "factories")
"""Drafters, which guess tokens, by the name that ``speculation.use`` selects."""
LOGIT_PROCESSORS: Hook[LogitProcessorFactory] = Hook(
    "logit_processors", "logit processor", "infeng_core.requests.processors:LogitProcessors", "factories"
)
"""Logit processors, which mask and bias tokens, by the name that ``SamplingParams.processors`` selects."""
PREFIX_STORES: Hook[PrefixStoreFactory] = Hook(
    "prefix_stores", "prefix store", "infeng_core.backends.saved_prefixes:PrefixStore", "factories"
)
"""Stores of computed prefixes by the name that ``kv_cache.prefix_store`` selects."""
OBSERVERS: Hook[ObserverFactory] = Hook(
    "observers", "observer", "infeng_core.telemetry.observers:Observer", "factories"
)
"""Observers of steps, requests and adapters, by the names in ``observers.use``."""
COMMANDS: Hook[Command] = Hook("commands", "command", f"{__name__}:Command", "list", raises=(SystemExit, *FILE_ERRORS))
"""Commands of the command line."""
RUN_OPTIONS: Hook[RunOptions] = Hook(
    "run_options", "run option", f"{__name__}:RunOptions", "parts", raises=(SystemExit, *FILE_ERRORS)
)
"""Groups of options for the commands that generate text, by name."""

HOOKS: tuple[Hook[Any], ...] = tuple(found for found in list(globals().values()) if isinstance(found, Hook))
