"""From a model reference to tensors in memory."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from infeng_core import _native
from infeng_core.errors import ModelError, UsageError, unknown_key_remedy
from infeng_core.formats import hub, hub_gguf, hub_names, native
from infeng_core.formats.atomic import locked
from infeng_core.formats.cache import cached_model, mark_used, most_bytes, require_own, trim
from infeng_core.formats.choice import FormatChoice, choose
from infeng_core.formats.conversion import Conversion, convert_to
from infeng_core.formats.gguf.file import is_gguf
from infeng_core.formats.huggingface import refuse_file
from infeng_core.formats.quant import FormatLookup, QuantFormat, builtin_format
from infeng_core.formats.quantizers import DEFAULT, QuantizerChoice
from infeng_core.formats.read import read_native
from infeng_core.formats.sources import Source, written
from infeng_core.formats.spec import ConversionSpec
from infeng_core.formats.tensors import LoadedModel
from infeng_core.formats.tokenizer_files import MADE
from infeng_core.log import get_logger
from infeng_core.machine import placement
from infeng_core.machine.topology import read
from infeng_core.models import families

if TYPE_CHECKING:
    from infeng_core.settings.config import EngineConfig


class FormatSource(Protocol):
    """What is needed of ``infeng_core.plug``'s plugins here."""

    def model_families(self) -> Mapping[str, families.Family]:
        """Return the families of plugins."""

    def sources(self) -> Mapping[str, Source]:
        """Return the readers of model files that plugins bring."""

    def quant_format(self, name: str) -> QuantFormat:
        """Return a weight format by name; raises an InfengError that lists the known ones."""

    def quantizer(self, name: str) -> QuantizerChoice:
        """Return a quantizer by name; raises an InfengError that lists the known ones."""


def load(
    reference: str | Path,
    config: EngineConfig,
    plugins: FormatSource | None = None,
    *,
    verify: bool = True,
    progress: bool = True,
) -> LoadedModel:
    """Load a model from an engine-native directory, a Hugging Face directory, a GGUF file or a hub name.

    All but the first are converted to ``config.model.format`` and ``formats`` on first use and kept in the cache, as
    ``config.model.cache`` says; they are loaded from there ever after. ``plugins`` finds weight formats and the
    quantizer; without it only the built-in ones are known.
    ``verify=False`` skips the checksums. Raises UsageError, ModelError or ResourceError.
    """
    lookup: FormatLookup = cache(plugins.quant_format) if plugins is not None else builtin_format
    if plugins is not None:
        use_families(plugins)
    directory = find(reference, plugins)
    choice = choose(config, lookup)
    if not native.is_native(directory):
        spec = ConversionSpec(choice, lookup, _quantizer(config.model.quantizer, plugins))
        return _load_converted(directory, spec, config, verify, progress)
    model = read_native(directory, lookup, load=config.model.load, verify=verify, pages=_pages(config))
    _check_formats(model, choice, config, lookup)
    _check_quantizer(model, config)
    return model


def use_families(plugins: FormatSource) -> None:
    """Let models of the families that plugins bring be read and run."""
    families.add(plugins.model_families())


def find(reference: str | Path, plugins: FormatSource | None = None) -> Path:
    """Return the local directory or GGUF file that a model reference names, fetched from the hub if need be.

    What is no model directory may be of a format that a plugin reads.
    """
    try:
        path = Path(reference).expanduser()
        is_directory, is_file = path.is_dir(), path.is_file()
    except (OSError, ValueError, RuntimeError, TypeError) as error:
        why = f"is no usable path ({getattr(error, 'strerror', None) or error})"
        raise UsageError(f"{str(reference)[:200]}", why, "give a directory, or a hub name such as org/name") from None
    if plugins is not None and (is_file or (is_directory and not _is_model(path))):
        made = written(path, plugins.sources())
        if made is not None:
            return made
    if is_directory or is_gguf(path):
        return path
    if is_file:
        if path.suffix in (".bin", ".pt", ".pth"):
            refuse_file(path)
        remedy = "give the directory that holds it together with config.json, or a GGUF file"
        raise UsageError(f"{path}", "is a file", remedy)
    if isinstance(reference, str) and hub_gguf.is_name(reference):
        return hub_gguf.fetch_gguf(reference)
    if (
        isinstance(reference, str)
        and hub_names.is_name(reference)
        and path.suffix not in (".gguf", ".bin", ".safetensors")
    ):
        return hub.fetch_model(reference, hub_gguf.refuse_bare_name)
    if path.suffix == ".gguf":
        raise UsageError(f"{reference}", "no such file", "check the path of the GGUF file")
    raise UsageError(f"{reference}", "no such model directory", "give a directory, or a hub name such as org/name")


def _is_model(directory: Path) -> bool:
    return native.is_native(directory) or (directory / "config.json").exists()


def _quantizer(name: str, plugins: FormatSource | None) -> QuantizerChoice:
    if plugins is not None:
        return plugins.quantizer(name)
    if name != DEFAULT.name:
        raise UsageError(f"quantizer {name}", "unknown", unknown_key_remedy(name, [DEFAULT.name]))
    return DEFAULT


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
        if not native.is_native(destination):
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
