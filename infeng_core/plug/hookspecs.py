"""Every hook of the engine. They are called while an engine or the command line is assembled, never per token.

A hook returns plain data; what is behind it is imported when it is used. Built-ins (``infeng_core.builtin``) come
through the same hooks. ``settings`` are the plugin's own, from the section of the manifest that has its name; an
implementation that needs none leaves the argument out.
"""

from __future__ import annotations

import argparse
import builtins
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from infeng_core.plug import hookspec

if TYPE_CHECKING:
    from infeng_core.formats.adapters.readers import AdapterReader
    from infeng_core.formats.locators import Locator
    from infeng_core.formats.model_readers import ModelReader
    from infeng_core.formats.model_writers import ModelWriter
    from infeng_core.formats.quant import QuantFormat
    from infeng_core.formats.quantizers import Quantizer
    from infeng_core.formats.sources import Source
    from infeng_core.models.families import Family

API_VERSION = 1
"""Of these hooks and of what they take and give; raised when an old plugin would meet something else."""

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
CalibratorFactory = Callable[..., object]
"""Called once by a conversion as ``factory(config: EngineConfig, plugins: Plugins)``; returns an
``infeng_core.api.Calibrator``."""
Backend = Any
"""An ``infeng_core.backends.interface.Backend``."""


class _Names(dict[str, Any]):
    """The names in annotations of this module; those that are for type checkers alone stand for anything."""

    def __missing__(self, name: str) -> Any:
        return globals().get(name, getattr(builtins, name, Any))


def owed(hook: str) -> Any:
    """Return the type that implementations of ``hook`` return; objects in it are looked at when they are used."""
    return eval(globals()[hook].__annotations__["return"], {}, _Names())


@dataclass(frozen=True)
class KernelLibrary:
    """A shared object that exports ``infeng_library``."""

    name: str
    path: Path
    features: tuple[str, ...] = ()  # CPU features without which it must not even be mapped


class Command(Protocol):
    """``infeng <name>``."""

    name: str
    help: str

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's arguments."""

    def run(self, arguments: argparse.Namespace) -> int:
        """Do it; return the exit status. InfengError is printed by the caller."""


class RunOptions:
    """Options that a plugin adds to the commands that generate text, ``run``, ``chat`` and ``ask``.

    A plugin's class derives from this one and has the methods that it needs. ``arguments`` are those of the command.
    """

    def add(self, parser: argparse.ArgumentParser, command: str) -> None:
        """Add the options to the parser of a command, called by its name."""

    def processors(self, arguments: argparse.Namespace) -> Sequence[tuple[str, object]]:
        """Return the logit processors that the options stand for, each with its argument; raises UsageError."""
        return ()

    def fields(self, arguments: argparse.Namespace) -> Mapping[str, object]:
        """Return the same as fields of a request to a server; raises UsageError."""
        return {}

    def run(self, arguments: argparse.Namespace, prompts: Callable[[], Sequence[str]]) -> int | None:
        """Answer in place of an engine and return the exit status, or None to leave it to the command ``run``.

        prompts: returns what is to be completed; reads standard input where that is asked for.
        """
        return None


@hookspec
def infeng_kernel_libraries(settings: Mapping[str, Any]) -> list[KernelLibrary]:  # type: ignore[empty-body]
    """Return kernel libraries that a plugin's YAML cannot name, such as one found at run time."""


@hookspec
def infeng_tokenizers(settings: Mapping[str, Any]) -> dict[str, TokenizerFactory]:  # type: ignore[empty-body]
    """Return tokenizers by the name that ``tokenizer.use`` selects."""


@hookspec
def infeng_policies(settings: Mapping[str, Any]) -> dict[str, PolicyFactory]:  # type: ignore[empty-body]
    """Return schedulers by the name that ``scheduler.use`` selects."""


@hookspec
def infeng_quant_formats(settings: Mapping[str, Any]) -> dict[str, QuantFormat]:  # type: ignore[empty-body]
    """Return weight formats by the name that ``model.format`` selects."""


@hookspec
def infeng_quantizers(settings: Mapping[str, Any]) -> dict[str, Quantizer]:  # type: ignore[empty-body]
    """Return quantizers, which choose the codes of integer formats, by the name that ``model.quantizer`` selects."""


@hookspec
def infeng_calibrators(settings: Mapping[str, Any]) -> dict[str, CalibratorFactory]:  # type: ignore[empty-body]
    """Return calibrators, which fit conversions to text, by name; ``infeng convert --calibrate`` uses ``text``."""


@hookspec
def infeng_backends(settings: Mapping[str, Any]) -> dict[str, Backend]:  # type: ignore[empty-body]
    """Return backends by the name that ``backend.use`` selects."""


@hookspec
def infeng_model_families(settings: Mapping[str, Any]) -> dict[str, Family]:  # type: ignore[empty-body]
    """Return model families by the ``model_type`` of their config.json."""


@hookspec
def infeng_sources(settings: Mapping[str, Any]) -> dict[str, Source]:  # type: ignore[empty-body]
    """Return readers of model files by name; the first that reads what is no model directory is used."""


@hookspec
def infeng_model_readers(settings: Mapping[str, Any]) -> dict[str, ModelReader]:  # type: ignore[empty-body]
    """Return readers of model files by name; the first that recognizes a path opens it, tensor by tensor."""


@hookspec
def infeng_model_writers(settings: Mapping[str, Any]) -> dict[str, ModelWriter]:  # type: ignore[empty-body]
    """Return writers of model files by name; ``infeng convert`` takes the first that writes files so called."""


@hookspec
def infeng_adapter_readers(settings: Mapping[str, Any]) -> dict[str, AdapterReader]:  # type: ignore[empty-body]
    """Return readers of adapter files by name; the first that recognizes a path packs the adapter."""


@hookspec
def infeng_locators(settings: Mapping[str, Any]) -> dict[str, Locator]:  # type: ignore[empty-body]
    """Return finders of models and adapters by name, for references that are no local paths."""


@hookspec
def infeng_drafters(settings: Mapping[str, Any]) -> dict[str, DrafterFactory]:  # type: ignore[empty-body]
    """Return drafters, which guess tokens, by the name that ``speculation.use`` selects."""


@hookspec
def infeng_logit_processors(settings: Mapping[str, Any]) -> dict[str, LogitProcessorFactory]:  # type: ignore[empty-body]
    """Return logit processors, which mask and bias tokens, by the name that ``SamplingParams.processors`` selects."""


@hookspec
def infeng_prefix_stores(settings: Mapping[str, Any]) -> dict[str, PrefixStoreFactory]:  # type: ignore[empty-body]
    """Return stores of computed prefixes by the name that ``kv_cache.prefix_store`` selects."""


@hookspec
def infeng_observers(settings: Mapping[str, Any]) -> dict[str, ObserverFactory]:  # type: ignore[empty-body]
    """Return observers, which are told what steps, requests and adapters did, by the names in ``observers.use``."""


@hookspec
def infeng_commands(settings: Mapping[str, Any]) -> list[Command]:  # type: ignore[empty-body]
    """Return commands of the command line."""


@hookspec
def infeng_run_options(settings: Mapping[str, Any]) -> dict[str, RunOptions]:  # type: ignore[empty-body]
    """Return groups of options for the commands that generate text, by name."""
