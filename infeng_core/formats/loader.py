"""Loading a model: from a reference to tensors in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from infeng_core import _native
from infeng_core.errors import ModelError, UsageError
from infeng_core.formats.artifacts.manifest import is_native
from infeng_core.formats.artifacts.reader import read_native
from infeng_core.formats.converters import Converter, Prepared
from infeng_core.formats.format_choice import FormatChoice, choose
from infeng_core.formats.locators import Located, NoWeightsError
from infeng_core.formats.lookup import format_lookup
from infeng_core.formats.providers import CORE, Providers
from infeng_core.formats.quant import FormatLookup
from infeng_core.formats.tensors import LoadedModel
from infeng_core.log import get_logger
from infeng_core.machine import placement
from infeng_core.machine.topology import read
from infeng_core.models import families
from infeng_core.plug.hookspecs import CONVERTERS, LOCATORS, MODEL_FAMILIES

if TYPE_CHECKING:
    from infeng_core.settings.config import EngineConfig

Read = Callable[..., LoadedModel]
"""``read_native`` with the settings of a configuration."""


def load(
    reference: str | Path,
    config: EngineConfig,
    plugins: Providers = CORE,
    *,
    verify: bool = True,
    progress: bool = True,
    streamed: bool = False,
) -> LoadedModel:
    """Load a model: an engine-native directory, any model that a converter prepares, or a name that a locator knows.

    ``plugins`` finds converters, locators and weight formats; without it only the core's formats are known.
    ``verify=False`` skips the checksums. ``streamed`` maps the files and reads each weight when it is asked for
    (``LoadedModel.weights``). Raises UsageError, ModelError or ResourceError.
    """
    lookup = format_lookup(plugins)
    use_families(plugins)
    directory = find(reference, plugins)
    choice = choose(config, lookup)
    how = "stream" if streamed else config.model.load
    read = partial(read_native, lookup=lookup, load=how, verify=verify, pages=_pages(config))
    if not is_native(directory):
        return _read_prepared(converter_of(directory, config, plugins).prepare(directory, progress=progress), read)
    model = read(directory)
    _check_formats(model, choice, config, lookup)
    _check_quantizer(model, config)
    return model


def use_families(plugins: Providers) -> None:
    """Register the model families of plugins."""
    families.add(dict(plugins.each(MODEL_FAMILIES)))


def find(reference: str | Path, plugins: Providers = CORE) -> Path:
    """Return the local directory or file that a model reference names, fetched if need be."""
    try:
        path = Path(reference).expanduser()
        is_there = path.is_dir() or path.is_file()
    except (OSError, ValueError, RuntimeError, TypeError) as error:
        why = f"is no usable path ({getattr(error, 'strerror', None) or error})"
        raise UsageError(f"{str(reference)[:200]}", why, "give a directory, or a hub name such as org/name") from None
    if is_there:
        return path
    if wheel := plugins.missing_wheel(str(reference)):
        raise UsageError(f"{reference}", "nothing that is installed reads it", wheel)
    if isinstance(reference, str) and (found := locate(reference, plugins)) is not None:
        return found
    raise UsageError(f"{reference}", "no such model directory", "give a directory, or a hub name such as org/name")


def locate(reference: str, plugins: Providers = CORE, kind: Located = "model") -> Path | None:
    """Return the result of the first locator that knows the name, None if none does; raises ModelError."""
    try:
        found = (locator.locate(reference, kind) for _, locator in plugins.each(LOCATORS))
        return next((path for path in found if path is not None), None)
    except NoWeightsError as error:
        for _, locator in plugins.each(LOCATORS):
            locator.refuse(reference, error.files)
        wheel = next(filter(None, map(plugins.missing_wheel, error.files)), "")
        raise ModelError(error.what, error.why, wheel or error.remedy) from None


def converter_of(source: Path, config: EngineConfig, plugins: Providers) -> Converter:
    """Return the first converter that recognizes ``source``; raises UsageError or ModelError if there is none."""
    made: list[Converter] = []
    for _, factory in plugins.each(CONVERTERS):
        made.append(factory(config, plugins))
        if made[-1].recognizes(source):
            return made[-1]
    for one in made:
        one.refuse(source)
    why = "is not engine-native, and nothing that is installed converts it"
    remedy = plugins.missing_wheel(str(source), is_there=True) or "give an engine-native directory"
    raise UsageError(f"{source}", why, remedy)


def _read_prepared(prepared: Prepared, read: Read) -> LoadedModel:
    """Read a prepared directory; a damaged one is made again once, if its converter can do that."""
    try:
        return _read_once(prepared, read)
    except ModelError as error:
        if prepared.again is None:
            raise
        get_logger(__name__).warning("the cached conversion is damaged and is made again", reason=str(error))
        return _read_once(prepared.again(), read)


def _read_once(prepared: Prepared, read: Read) -> LoadedModel:
    is_read = False
    try:
        model = read(prepared.directory, key=prepared.key)
        is_read = True
    finally:
        if prepared.done is not None:
            prepared.done(is_read)
    return replace(model, conversion_seconds=prepared.seconds, tokenizer_dir=prepared.tokenizer or model.tokenizer_dir)


def _pages(config: EngineConfig) -> Callable[[int], _native.Pages]:
    """Return the placement of weights by their bytes, like the backend's placement of the cache."""

    def pages(nbytes: int) -> _native.Pages:
        topology = read()
        return placement.pages(config.memory, topology, placement.choose(topology, None, config.threads, nbytes))

    return pages


def _check_formats(model: LoadedModel, choice: FormatChoice, config: EngineConfig, lookup: FormatLookup) -> None:
    """Raise UsageError if a requested format differs from a converted model's; defaults request nothing."""
    origins = config.provenance
    for name, wanted in choice.for_model(model.config, lookup).items():
        pattern = choice.pattern_of(name)
        entry = f"model.formats.{pattern}"
        setting = "model.format" if pattern is None else entry if entry in origins else "model.formats"
        if origins.get(setting, "default") != "default" and model.formats_used[name] != wanted:
            why = f"{name} is stored as {model.formats_used[name]}, {wanted} was asked for"
            raise UsageError(f"{model.source}", why, "leave the format out, or convert the original model again")


def _check_quantizer(model: LoadedModel, config: EngineConfig) -> None:
    """Raise UsageError if a requested quantizer differs from a converted model's; a default requests nothing."""
    wanted = config.model.quantizer
    if config.provenance.get("model.quantizer", "default") != "default" and model.quantizer != wanted:
        why = f"its codes were chosen by {model.quantizer}, {wanted} was asked for"
        raise UsageError(f"{model.source}", why, "leave the quantizer out, or convert the original model again")
