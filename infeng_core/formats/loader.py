"""From a model reference to tensors in memory."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from infeng_core import _native
from infeng_core.errors import ModelError, UsageError
from infeng_core.formats.artifacts.manifest import is_native
from infeng_core.formats.artifacts.reader import read_native
from infeng_core.formats.atomic import locked
from infeng_core.formats.cache import cached_model, mark_used, most_bytes, require_own, trim
from infeng_core.formats.conversion import Conversion, convert_to
from infeng_core.formats.format_choice import FormatChoice, choose
from infeng_core.formats.hub import NoWeightsError
from infeng_core.formats.huggingface import refuse_file
from infeng_core.formats.locators import Located
from infeng_core.formats.providers import CORE, Providers, reader_of, recognizing
from infeng_core.formats.quant import FormatLookup
from infeng_core.formats.sources import written
from infeng_core.formats.spec import ConversionSpec
from infeng_core.formats.tensors import LoadedModel
from infeng_core.formats.tokenizer_files import MADE
from infeng_core.log import get_logger
from infeng_core.machine import placement
from infeng_core.machine.topology import read
from infeng_core.models import families

if TYPE_CHECKING:
    from infeng_core.settings.config import EngineConfig


def load(
    reference: str | Path,
    config: EngineConfig,
    plugins: Providers = CORE,
    *,
    verify: bool = True,
    progress: bool = True,
) -> LoadedModel:
    """Load a model from an engine-native directory, from files that a reader knows, or by a name that is located.

    All but the first are converted to ``config.model.format`` and ``formats`` on first use and kept in the cache, as
    ``config.model.cache`` says; they are loaded from there ever after. ``plugins`` finds readers, weight formats
    and the quantizer; without it only the core's are known.
    ``verify=False`` skips the checksums. Raises UsageError, ModelError or ResourceError.
    """
    lookup: FormatLookup = cache(plugins.quant_format)
    use_families(plugins)
    directory = find(reference, plugins)
    choice = choose(config, lookup)
    if not is_native(directory):
        reader = partial(reader_of, providers=plugins)
        spec = ConversionSpec(choice, lookup, plugins.quantizer(config.model.quantizer), reader=reader)
        return _load_converted(directory, spec, config, verify, progress)
    model = read_native(directory, lookup, load=config.model.load, verify=verify, pages=_pages(config))
    _check_formats(model, choice, config, lookup)
    _check_quantizer(model, config)
    return model


def use_families(plugins: Providers) -> None:
    """Let models of the families that plugins bring be read and run."""
    families.add(plugins.model_families())


def find(reference: str | Path, plugins: Providers = CORE) -> Path:
    """Return the local directory or file that a model reference names, fetched if need be.

    A path that no reader recognizes may be of a format that a plugin writes as a Hugging Face directory.
    """
    try:
        path = Path(reference).expanduser()
        is_directory, is_file = path.is_dir(), path.is_file()
    except (OSError, ValueError, RuntimeError, TypeError) as error:
        why = f"is no usable path ({getattr(error, 'strerror', None) or error})"
        raise UsageError(f"{str(reference)[:200]}", why, "give a directory, or a hub name such as org/name") from None
    if (is_directory and _is_model(path)) or ((is_directory or is_file) and recognizing(path, plugins) is not None):
        return path
    if is_directory or is_file:
        made = written(path, plugins.sources())
        if made is not None or is_directory:
            return made or path
        if path.suffix in (".bin", ".pt", ".pth"):
            refuse_file(path)
        reader_of(path, plugins)  # which says what to do with a file that nothing reads
    if wheel := plugins.missing_wheel(str(reference)):
        raise UsageError(f"{reference}", "nothing that is installed reads it", wheel)
    if isinstance(reference, str) and (found := locate(reference, plugins)) is not None:
        return found
    raise UsageError(f"{reference}", "no such model directory", "give a directory, or a hub name such as org/name")


def locate(reference: str, plugins: Providers = CORE, kind: Located = "model") -> Path | None:
    """Return what the first locator that knows the name finds, None where none knows it; raises ModelError."""
    try:
        found = (locator.locate(reference, kind) for _, locator in plugins.locators())
        return next((path for path in found if path is not None), None)
    except NoWeightsError as error:
        for _, locator in plugins.locators():
            locator.refuse(reference, error.files)
        wheel = next(filter(None, map(plugins.missing_wheel, error.files)), "")
        raise ModelError(error.what, error.why, wheel or error.remedy) from None


def _is_model(directory: Path) -> bool:
    return is_native(directory) or (directory / "config.json").exists()


def _load_converted(
    source: Path, spec: ConversionSpec, config: EngineConfig, verify: bool, progress: bool
) -> LoadedModel:
    """Load through the cache, whose entries are named by what they are made of; a damaged one is made again, once."""
    key = spec.key(source)
    made = partial(convert_to, spec, source, progress=progress)
    read = partial(
        read_native, lookup=spec.lookup, load=config.model.load, verify=verify, key=key, pages=_pages(config)
    )
    if config.model.cache == "none":
        return _load_uncached(source, key, made, read)
    destination = cached_model(key)
    log = get_logger(__name__)
    seconds = 0.0
    for last in (False, True):
        require_own(destination)
        if not is_native(destination):
            seconds += (done := made(destination)).seconds
            _say_converted(done, source)
            trim(most_bytes(config.model.cache), destination)
        mark_used(destination)
        try:
            model = replace(read(destination), conversion_seconds=seconds)
            # The source, so that an error names the file that its reader knows.
            return replace(model, tokenizer_dir=source) if _has_tokenizer(source, destination) else model
        except ModelError as error:
            if last:
                raise
            log.warning("the cached conversion is damaged and is made again", reason=str(error))
            with locked(destination):
                shutil.rmtree(destination, ignore_errors=True)
    raise AssertionError("unreachable")


def _load_uncached(
    source: Path, key: str, made: Callable[[Path], Conversion], read: Callable[[Path], LoadedModel]
) -> LoadedModel:
    """Load a conversion and keep nothing of it; a tokenizer made of another file stays while the process runs."""
    folder = Path(tempfile.mkdtemp(prefix="infeng-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    try:
        done = made(folder / key)
        _say_converted(done, source)
        model = replace(read(folder / key), conversion_seconds=done.seconds)
        has_tokenizer = _has_tokenizer(source, folder / key)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    for path in (folder / key).glob("*.safetensors"):  # what is mapped stays until it is let go
        path.unlink()
    if not has_tokenizer:
        return model
    shutil.rmtree(folder, ignore_errors=True)
    return replace(model, tokenizer_dir=source)


def _has_tokenizer(source: Path, converted: Path) -> bool:
    """Return whether a model's tokenizer is its own file, not one that the conversion made of another."""
    return (source / MADE).is_file() or not (converted / MADE).is_file()


def _say_converted(done: Conversion, source: Path) -> None:
    log = get_logger(__name__)
    for change, tensors in done.rounded_again.items():
        log.warning(f"rounded again: {change}", tensors=tensors, model=str(source))
    log.info("converted", source=str(source), to=str(done.path), seconds=round(done.seconds, 2))


def _pages(config: EngineConfig) -> Callable[[int], _native.Pages]:
    """Return how weights of so many bytes are placed, as the backend will place the cache."""

    def pages(nbytes: int) -> _native.Pages:
        topology = read()
        return placement.pages(config.memory, topology, placement.choose(topology, None, config.threads, nbytes))

    return pages


def _check_formats(model: LoadedModel, choice: FormatChoice, config: EngineConfig, lookup: FormatLookup) -> None:
    """Raise UsageError where a format was asked for that a converted model does not have; defaults ask for nothing."""
    origins = config.provenance
    for name, wanted in choice.for_model(model.config, lookup).items():
        pattern = choice.pattern_of(name)
        entry = f"model.formats.{pattern}"
        setting = "model.format" if pattern is None else entry if entry in origins else "model.formats"
        if origins.get(setting, "default") != "default" and model.formats_used[name] != wanted:
            why = f"{name} is stored as {model.formats_used[name]}, {wanted} was asked for"
            raise UsageError(f"{model.source}", why, "leave the format out, or convert the original model again")


def _check_quantizer(model: LoadedModel, config: EngineConfig) -> None:
    """Raise UsageError where another quantizer was asked for than a converted model's; a default asks for nothing."""
    wanted = config.model.quantizer
    if config.provenance.get("model.quantizer", "default") != "default" and model.quantizer != wanted:
        why = f"its codes were chosen by {model.quantizer}, {wanted} was asked for"
        raise UsageError(f"{model.source}", why, "leave the quantizer out, or convert the original model again")
