"""From an adapter reference to a packed adapter."""

from __future__ import annotations

from pathlib import Path

from infeng_core.errors import AdapterError, ModelError
from infeng_core.formats import hub, hub_names
from infeng_core.formats.adapters.artifact import FILE, is_artifact, load_artifact
from infeng_core.formats.adapters.bounds import MAX_MAGNITUDE
from infeng_core.formats.adapters.cached import load_through_cache
from infeng_core.formats.adapters.gguf import read_gguf_adapter
from infeng_core.formats.adapters.image import AdapterImage
from infeng_core.formats.adapters.packed import AdapterDtype, PackedAdapter
from infeng_core.formats.adapters.packing import pack
from infeng_core.formats.adapters.peft import WEIGHTS_FILE, PeftAdapter, is_peft, read_peft
from infeng_core.formats.adapters.peft_config import CONFIG_FILE
from infeng_core.formats.adapters.snapshot import as_adapter_error
from infeng_core.formats.adapters.spec import A_FORMAT
from infeng_core.formats.gguf.file import is_gguf
from infeng_core.formats.tensors import LoadedModel
from infeng_core.models.config import ModelConfig

HUB_FILES = (CONFIG_FILE, WEIGHTS_FILE, FILE)


def load_adapter(
    reference: str | Path, model: LoadedModel, dtype: AdapterDtype, *, scale: float = 1.0, cache: int = 0
) -> PackedAdapter:
    """Load an adapter over ``model``: PEFT directory, GGUF file, artifact or hub name (``org/name[@revision]``).

    ``scale`` multiplies alpha / r. ``cache`` is how many bytes packed PEFT directories may take in the user's cache.
    Raises AdapterError for anything that is broken, that does not fit the base or that is not run.
    """
    if dtype not in A_FORMAT:
        raise AdapterError(f"{reference}", f"unknown storage {dtype!r}", f"known are {', '.join(A_FORMAT)}")
    if not abs(scale) <= MAX_MAGNITUDE:
        raise AdapterError(f"{reference}", f"cannot be scaled by {scale}", f"give a scale of at most {MAX_MAGNITUDE:g}")
    directory = find_adapter(reference)
    if is_artifact(directory):
        return load_artifact(directory, model, dtype, scale)

    def packed() -> tuple[AdapterImage, str]:
        adapter = read_adapter(directory, model.config)
        return pack(adapter, model, dtype, scale), adapter.base_name

    return load_through_cache(directory, model, dtype, scale, packed, cache)


def read_adapter(path: Path, base: ModelConfig) -> PeftAdapter:
    """Read a PEFT directory or a GGUF file and check that it fits ``base``; raises AdapterError."""
    return read_gguf_adapter(path, base) if path.is_file() else read_peft(path, base)


def find_adapter(reference: str | Path) -> Path:
    """Return the directory or GGUF file of an adapter, fetched from the hub if need be; raises AdapterError."""
    try:
        path = Path(reference).expanduser()
        if path.is_dir():
            found = is_peft(path), is_artifact(path)
            if not any(found):
                raise AdapterError(
                    f"{path}", f"holds no adapter (no {CONFIG_FILE})", "give a directory that PEFT saved"
                )
            if all(found):
                why = f"holds {CONFIG_FILE} and {FILE}, of which only one can be meant"
                raise AdapterError(f"{path}", why, "keep them in two directories")
            return path
        if path.exists():
            with as_adapter_error(path):
                if is_gguf(path):
                    return path
            raise AdapterError(f"{path}", "is a file", "give the directory that holds it, or a GGUF file")
    except (OSError, ValueError, RuntimeError) as error:
        why = f"is no usable path ({getattr(error, 'strerror', None) or error})"
        raise AdapterError(str(reference)[:200], why, "give a directory or org/name") from None
    if isinstance(reference, str) and hub_names.is_name(reference):
        try:
            return hub.fetch(reference, HUB_FILES, "adapter")
        except ModelError as error:
            raise AdapterError(error.what, error.why, error.remedy) from None
    raise AdapterError(f"{reference}", "no such adapter directory", "give a directory, or a hub name such as org/name")
