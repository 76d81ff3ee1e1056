"""The core's own plugins, registered through the same hooks as others. Each part is imported when its hook is
called."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from infeng_core.plug.hookspecs import (
    Backend,
    KernelLibrary,
    LogitProcessorFactory,
    ObserverFactory,
    PolicyFactory,
    TokenizerFactory,
)
from infeng_core.plug.markers import hookimpl

if TYPE_CHECKING:
    from infeng_core.formats.quant import QuantFormat
    from infeng_core.models.families import Family


@hookimpl
def infeng_kernel_libraries() -> list[KernelLibrary]:
    """The reference kernels: the fallback, and the reference for all others."""
    return [KernelLibrary("reference", Path(__file__).parent / "libinfeng_reference.so")]


@hookimpl
def infeng_tokenizers() -> dict[str, TokenizerFactory]:
    """The built-in tokenizer, which reads token ids."""
    from infeng_core.requests.idstokenizer import IdsTokenizer

    return {"ids": IdsTokenizer}


@hookimpl
def infeng_policies() -> dict[str, PolicyFactory]:
    """Built-in schedulers."""
    from infeng_core.scheduling.fcfs import FirstCome

    return {"fcfs": FirstCome}


@hookimpl
def infeng_quant_formats() -> dict[str, QuantFormat]:
    """Built-in weight formats."""
    from infeng_core.formats.quant import BUILTIN

    return dict(BUILTIN)


@hookimpl
def infeng_backends() -> dict[str, Backend]:
    """Built-in backends."""
    from infeng_core.backends.native.executable import NativeBackend

    return {"native": NativeBackend()}


@hookimpl
def infeng_model_families() -> dict[str, Family]:
    """Built-in model families."""
    from infeng_core.models.families import builtin

    return dict(builtin())


@hookimpl
def infeng_logit_processors() -> dict[str, LogitProcessorFactory]:
    """Built-in logit processors, which fields of SamplingParams select."""
    from functools import partial

    from infeng_core.requests.builtin_processors import KINDS, BuiltinProcessors

    return {name: partial(BuiltinProcessors, kind) for name, kind in KINDS.items()}


@hookimpl
def infeng_observers() -> dict[str, ObserverFactory]:
    """The built-in observer, which logs requests."""
    from infeng_core.telemetry.observers import LogObserver

    return {"log": lambda config: LogObserver()}
