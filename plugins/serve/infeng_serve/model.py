"""The model that is served: the engine, its chat template, and what it is called."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infeng_chat.template import ChatTemplate, find

from infeng_core.api import Engine, EngineConfig, RequestError, get_logger
from infeng_serve.adapters import AdapterNames
from infeng_serve.settings import Settings

_log = get_logger(__name__)

Lora = tuple[str, str, float]
"""Name, path or hub name, and scale."""


@dataclass(frozen=True, slots=True)
class Model:
    """Everything that is there once the engine is loaded."""

    engine: Engine
    template: ChatTemplate
    adapters: AdapterNames
    name: str
    """What responses call the base model."""
    names: tuple[str, ...]
    """All of its names."""
    defaults: Mapping[str, Any]
    """Sampling parameters of requests that give none."""
    created: int
    """Seconds since 1970."""

    @property
    def context(self) -> int:
        """Tokens that a prompt and its answer may have together."""
        return self.engine.limits.context


def load(config: EngineConfig, settings: Settings, loras: Sequence[Lora] = ()) -> Model:
    """Load the engine and what belongs to it; logs how long each part takes. Raises InfengError."""
    begin = time.perf_counter()
    engine = Engine(config=config)
    try:
        weights = time.perf_counter()
        for name, path, scale in loras:
            engine.adapters.load(name, path, scale=scale)
        adapters = time.perf_counter()
        directory = engine.model.tokenizer_dir
        override = Path(settings.chat_template) if settings.chat_template else None
        template = find(directory, engine.tokenizer, override=override)
        with contextlib.suppress(RequestError):  # what starts with the first conversation starts now
            template.prompt([{"role": "user", "content": "Hello"}])
        reference = str(config.model.path)
        names = settings.names or (name_of(reference),)
        end = time.perf_counter()
        _log.info(
            "model loaded",
            model=names[0],
            engine_s=round(weights - begin, 3),
            adapters_s=round(adapters - weights, 3),
            template_s=round(end - adapters, 3),
        )
        return Model(
            engine,
            template,
            AdapterNames(engine, (*names, reference), roots=settings.lora_roots, share=settings.share_adapters),
            names[0],
            tuple(names),
            engine.defaults,
            int(time.time()),
        )
    except BaseException:
        engine.close()
        raise


def name_of(reference: str) -> str:
    """Return what a model is called that was given no name: the last part of a directory's path, or the hub name."""
    path = Path(reference).expanduser()
    return path.resolve().name if path.exists() else reference
