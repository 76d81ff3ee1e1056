"""The converter of this wheel: a model that a reader opens, converted through the cache."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from infeng_convert.atomic import locked
from infeng_convert.cached import cached_model, most_bytes, trim_models
from infeng_convert.checkpoints import plan
from infeng_convert.conversion import Conversion, convert_to
from infeng_convert.least_recent import mark_used
from infeng_convert.providers import reader_of
from infeng_convert.quantizers import quantizer_of
from infeng_convert.sources import refuse, source_of
from infeng_convert.spec import ConversionSpec
from infeng_convert.tokenizer_files import MADE
from infeng_core.api import EngineConfig, get_logger, require_own
from infeng_core.api.formats import (
    ModelConfig,
    Prepared,
    Providers,
    artifact_manifest,
    choose,
    format_lookup,
)


class ArtifactConverter:
    """Converts a model that a reader opens to the formats of a configuration."""

    def __init__(self, config: EngineConfig, plugins: Providers) -> None:
        """Convert in the formats and with the cache of ``config``; ``plugins`` finds readers and the quantizer."""
        self._config = config
        self._plugins = plugins
        self._reader = partial(reader_of, providers=plugins)

    def recognizes(self, source: Path) -> bool:
        """Return whether a reader opens ``source``, or a directory that a plugin writes of it."""
        return source_of(source, self._plugins) is not None

    def prepare(self, source: Path, *, progress: bool) -> Prepared:
        """Return the conversion of ``source``, kept in the cache as ``model.cache`` says; raises as ``convert_to``."""
        config, lookup = self._config, format_lookup(self._plugins)
        quantizer = quantizer_of(config.model.quantizer, self._plugins)
        spec = ConversionSpec(choose(config, lookup), lookup, quantizer, reader=self._reader)
        directory = source_of(source, self._plugins) or source
        key = spec.key(directory)
        made = partial(convert_to, spec, directory, progress=progress)
        if config.model.cache == "none":
            return _uncached(directory, key, made)
        return _cached(directory, key, made, lambda: most_bytes(config.model.cache))

    def outline(self, source: Path) -> tuple[ModelConfig, Mapping[str, str]]:
        """Return the sizes of ``source`` and the format that each tensor would have; raises ModelError."""
        lookup = format_lookup(self._plugins)
        directory = source_of(source, self._plugins) or source
        return plan(directory, choose(self._config, lookup), lookup, self._reader)

    def refuse(self, source: Path) -> None:
        """Raise UsageError or ModelError that says why ``source`` is not read."""
        refuse(source, self._plugins)


def _cached(
    source: Path, key: str, made: Callable[[Path], Conversion], most: Callable[[], int], before: float = 0.0
) -> Prepared:
    """Return the cache entry, whose name is the key of its inputs; a damaged entry is made again once.

    most: returns the bytes that the cache may take, once it is there. before: seconds that an attempt took whose
    result was damaged.
    """
    destination, seconds = cached_model(key), before
    require_own(destination)
    if not artifact_manifest.is_native(destination):
        seconds += (done := made(destination)).seconds
        _say_converted(done, source)
        trim_models(most(), destination)
    mark_used(destination)

    def again() -> Prepared:
        with locked(destination):
            shutil.rmtree(destination, ignore_errors=True)
        return replace(_cached(source, key, made, most, seconds), again=None)

    # The source, so that an error names the file that its reader knows.
    tokenizer = source if _has_tokenizer(source, destination) else None
    return Prepared(destination, key, seconds, tokenizer, again)


def _uncached(source: Path, key: str, made: Callable[[Path], Conversion]) -> Prepared:
    """Return a conversion that is not kept; a tokenizer made of another file stays until the process ends."""
    folder = Path(tempfile.mkdtemp(prefix="infeng-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    try:
        done = made(folder / key)
        _say_converted(done, source)
        has_tokenizer = _has_tokenizer(source, folder / key)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise

    def end(is_read: bool) -> None:
        if has_tokenizer or not is_read:
            shutil.rmtree(folder, ignore_errors=True)
            return
        for path in (folder / key).glob("*.safetensors"):  # what is mapped stays until it is let go
            path.unlink()

    return Prepared(folder / key, key, done.seconds, source if has_tokenizer else None, done=end)


def _has_tokenizer(source: Path, converted: Path) -> bool:
    """Return whether a model's tokenizer is its own file, not one that the conversion made of another."""
    return (source / MADE).is_file() or not (converted / MADE).is_file()


def _say_converted(done: Conversion, source: Path) -> None:
    log = get_logger(__name__)
    for change, tensors in done.rounded_again.items():
        log.warning(f"rounded again: {change}", tensors=tensors, model=str(source))
    log.info("converted", source=str(source), to=str(done.path), seconds=round(done.seconds, 2))
