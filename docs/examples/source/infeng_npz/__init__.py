"""A source: one .npz file with a model's tensors, and the texts of config.json and tokenizer.json as ``config`` and
``tokenizer``. ``infeng run model.npz``."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from infeng_core.api import ModelError, hookimpl

TEXTS = ("config", "tokenizer")


class Npz:
    """Reads files by their suffix."""

    def __init__(self, suffix: str) -> None:
        """Read files whose names end in ``suffix``."""
        self._suffix = suffix

    def reads(self, path: Path) -> bool:
        """Return whether the name ends as it should."""
        return path.name.endswith(self._suffix)

    def write(self, path: Path, directory: Path) -> None:
        """Write the file as a Hugging Face directory; raises ModelError for one that is broken."""
        try:
            with np.load(path, allow_pickle=False) as archive:
                found = {name: archive[name] for name in archive.files}
        except (ValueError, OSError, zipfile.BadZipFile) as error:
            raise ModelError(f"{path}", f"not a NumPy archive: {error}", "save it again with numpy.savez") from error
        if "config" not in found:
            raise ModelError(f"{path}", "it has no config", "save the text of config.json in it")
        for name in TEXTS:
            if name in found:
                (directory / f"{name}.json").write_text(str(found.pop(name)), encoding="utf-8")
        save_file({name: np.ascontiguousarray(value) for name, value in found.items()}, directory / "model.safetensors")


@hookimpl(optionalhook=True)
def infeng_sources(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the source."""
    return {"npz": Npz(settings["suffix"])}
