"""Loading an adapter: from a reference to a packed adapter."""

from __future__ import annotations

from pathlib import Path

from infeng_core.errors import AdapterError, ModelError
from infeng_core.formats.adapters.artifact import FILE, is_artifact, load_artifact
from infeng_core.formats.adapters.bounds import MAX_MAGNITUDE
from infeng_core.formats.adapters.packed import AdapterDtype, PackedAdapter
from infeng_core.formats.adapters.readers import AdapterReader
from infeng_core.formats.adapters.snapshot import as_adapter_error
from infeng_core.formats.adapters.spec import A_FORMAT
from infeng_core.formats.providers import CORE, Providers
from infeng_core.formats.tensors import LoadedModel
from infeng_core.plug.hookspecs import ADAPTER_READERS, LOCATORS

CONFIG_FILE = "adapter_config.json"
PEFT_FILES = (CONFIG_FILE, "adapter_model.safetensors")
"""The files of a directory that PEFT saved, which the wheel infeng-peft reads."""


def load_adapter(
    reference: str | Path,
    model: LoadedModel,
    dtype: AdapterDtype,
    *,
    scale: float = 1.0,
    cache: int = 0,
    providers: Providers = CORE,
) -> PackedAdapter:
    """Load an adapter over ``model``: an artifact, files with a reader in ``providers``, or a name with a locator.

    ``scale`` multiplies alpha / r. ``cache`` is how many bytes packed adapters may take in the user's cache. Raises
    AdapterError for an adapter that is broken, does not fit the base or is not supported.
    """
    if dtype not in A_FORMAT:
        raise AdapterError(f"{reference}", f"unknown storage {dtype!r}", f"known are {', '.join(A_FORMAT)}")
    if not abs(scale) <= MAX_MAGNITUDE:
        raise AdapterError(f"{reference}", f"cannot be scaled by {scale}", f"give a scale of at most {MAX_MAGNITUDE:g}")
    path, reader = find_adapter(reference, providers)
    if reader is None:
        return load_artifact(path, model, dtype, scale, providers)
    return reader.load(path, model, dtype, scale, cache)


def find_adapter(reference: str | Path, providers: Providers = CORE) -> tuple[Path, AdapterReader | None]:
    """Return the path of an adapter, downloaded if necessary, and its reader: None for an artifact.

    Raises AdapterError.
    """
    try:
        path = Path(reference).expanduser()
        if not path.exists():
            path = _located(reference, providers)
        return path, _reader(path, providers)
    except (OSError, ValueError, RuntimeError) as error:
        why = f"is no usable path ({getattr(error, 'strerror', None) or error})"
        raise AdapterError(str(reference)[:200], why, "give a directory or org/name") from None


def is_adapter(path: Path, providers: Providers = CORE) -> bool:
    """Return whether ``path`` holds an adapter, also a PEFT directory that nothing installed reads."""
    return is_artifact(path) or _is_peft(path) or _recognizing(path, providers) is not None


def _is_peft(path: Path) -> bool:
    return any((path / name).exists() for name in PEFT_FILES)


def _recognizing(path: Path, providers: Providers) -> AdapterReader | None:
    return next((reader for _, reader in providers.each(ADAPTER_READERS) if reader.recognizes(path)), None)


def _reader(path: Path, providers: Providers) -> AdapterReader | None:
    with as_adapter_error(path):
        reader = _recognizing(path, providers)
    if path.is_dir() and is_artifact(path):
        # The same without the wheel that reads the other one, so that what is installed never chooses the contents.
        if reader is not None or _is_peft(path):
            why = f"holds {FILE} and another adapter, of which only one can be meant"
            raise AdapterError(f"{path}", why, "keep them in two directories")
        return None
    if reader is not None:
        return reader
    if (path / CONFIG_FILE).exists():
        remedy = providers.missing_wheel(str(path / CONFIG_FILE), "adapter_readers") or "install a plugin that reads it"
        raise AdapterError(f"{path}", f"holds {CONFIG_FILE}, which nothing that is installed reads", remedy)
    if path.is_dir():
        raise AdapterError(f"{path}", f"holds no adapter (no {CONFIG_FILE})", "give a directory that PEFT saved")
    remedy = providers.missing_wheel(str(path), "adapter_readers") or "give the directory that holds it"
    raise AdapterError(f"{path}", "is a file", remedy)


def _located(reference: str | Path, providers: Providers) -> Path:
    for _, locator in providers.each(LOCATORS) if isinstance(reference, str) else ():
        try:
            found = locator.locate(str(reference), "adapter")
        except ModelError as error:
            raise AdapterError(error.what, error.why, error.remedy) from None
        if found is not None:
            return found
    remedy = providers.missing_wheel(str(reference)) or "give a directory, or a hub name such as org/name"
    raise AdapterError(f"{reference}", "no such adapter directory", remedy)
