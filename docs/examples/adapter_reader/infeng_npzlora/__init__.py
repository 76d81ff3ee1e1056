"""A reader of adapter files: LoRA in one ``.npz`` file, ``MODULE.a`` (rank, inputs) and ``MODULE.b`` (outputs, rank)
for each module that it changes, and the number ``scaling``. ``infeng run MODEL --lora poet=poet.npz``."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from infeng_peft.api import AdapterWeights, Delta, WeightsReader
from numpy.typing import NDArray

from infeng_core.api import AdapterError, hookimpl
from infeng_core.api.adapters import AdapterReader, target_modules
from infeng_core.api.formats import ModelConfig


class NpzReader(WeightsReader):
    """What the hook gives; its base packs the weights."""

    def recognizes(self, path: Path) -> bool:
        """Return whether the name ends in ``.npz``."""
        return path.suffix == ".npz" and path.is_file()

    def files(self, path: Path) -> Sequence[Path]:
        """Return the file: while it does not change, it is packed once."""
        return [path]

    def read(self, path: Path, config: ModelConfig) -> AdapterWeights:
        """Return the adapter's weights; raises AdapterError for a module that the model has not."""
        try:
            with np.load(path, allow_pickle=False) as archive:
                found = {name: archive[name].astype(np.float32) for name in archive.files}
        except (OSError, EOFError, ValueError, zipfile.BadZipFile) as error:
            raise AdapterError(f"{path}", f"not a NumPy archive: {error}", "save it again with numpy.savez") from error
        scaling = float(found.pop("scaling", np.float32(1)))
        modules = sorted({name.rpartition(".")[0] for name in found})
        deltas = {module: self._delta(path, module, found, config, scaling) for module in modules}
        return AdapterWeights(path, "", deltas, {}, {}, {})

    def _delta(
        self, path: Path, module: str, found: dict[str, NDArray[np.float32]], config: ModelConfig, scaling: float
    ) -> Delta:
        site = target_modules(config).matrices.get(module)
        a, b = found.get(f"{module}.a"), found.get(f"{module}.b")
        if site is None or site.kind == "embedding" or a is None or b is None:
            raise AdapterError(f"{path}", f"{module} is no linear of the model, with a and b", "export it again")
        if a.ndim != 2 or a.shape[1] != site.k or b.shape != (site.part.rows, a.shape[0]):
            why = f"{module} has a {a.shape} and b {b.shape}; the model's is ({site.part.rows}, {site.k})"
            raise AdapterError(f"{path}", why, "load it over the model that it was trained on")
        return Delta(site, a, b, scaling, magnitude=None, bias=None)


@hookimpl
def infeng_adapter_readers() -> dict[str, AdapterReader]:
    """Return the reader."""
    return {"npzlora": NpzReader()}
