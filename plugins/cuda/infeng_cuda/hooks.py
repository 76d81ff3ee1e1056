"""Hooks of this plugin: the backend ``cuda`` and its kernel libraries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from infeng_core.api import KernelLibrary, hookimpl

from .libraries import library_of, path_of

if TYPE_CHECKING:
    from .backend import CudaBackend


@hookimpl
def infeng_kernel_libraries(settings: Mapping[str, Any]) -> list[KernelLibrary]:
    """Return the library that the settings name, where this wheel has it."""
    name = library_of(settings)
    return [KernelLibrary(name, path_of(name))] if path_of(name).is_file() else []


@hookimpl
def infeng_backends(settings: Mapping[str, Any]) -> dict[str, CudaBackend]:
    """Return the backend by its name for ``backend.use``."""
    from .backend import CudaBackend

    return {"cuda": CudaBackend(settings)}
