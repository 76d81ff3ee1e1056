"""The backend ``cuda``: the native backend's programs, with all values, weights and caches in a GPU's memory."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from infeng_core.api import EngineConfig, PluginError
from infeng_core.api.engines import NativeBackend, Split
from infeng_core.api.kernels import Library, detect, open_library

from .experts import split_of
from .libraries import GPU, VARIABLE, library_of, path_of, wanted


def opened(name: str) -> Library:
    """Return one of this wheel's libraries, opened as an engine does."""
    return open_library(str(path_of(name)), ",".join(sorted(detect().features)))


class CudaBackend(NativeBackend):
    """Compiles a model's graph to a program whose kernels compute on a GPU."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        """``settings``: the section ``cuda`` of the manifest."""
        self._settings = settings

    def device(self, config: EngineConfig) -> str:
        """Return the library whose device the kernels use; raises PluginError where this wheel lacks it."""
        name = library_of(self._settings)
        if not path_of(name).is_file():
            why = "this infeng-cuda was built without a compiler for GPUs, so it has no kernels for them"
            raise PluginError("backend cuda", why, "install a wheel that was built with nvcc, or use another backend")
        if name == GPU:
            os.environ[VARIABLE] = wanted(self._settings)
        return name

    def split(self, config: EngineConfig) -> Split | None:
        """Return how experts are divided between the GPU and the processor; None: the GPU computes all of them."""
        return split_of(self._settings)

    def available_bytes(self) -> int | None:
        """Return the bytes that the GPU leaves free; None where it cannot be asked."""
        device = opened(library_of(self._settings)).device
        if device is None or not device.name:
            return None
        return device.memory()[0]
