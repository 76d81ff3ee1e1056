"""The served model: the engine, its chat template and its names."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from infeng_chat.template import ChatTemplate, find, prepare

from infeng_core.api import Engine, EngineConfig, Plugins, RequestError, UsageError
from infeng_core.api.servers import StartupTimes
from infeng_serve.adapters import AdapterNames
from infeng_serve.auth import Caller
from infeng_serve.protocol.answer import Context
from infeng_serve.settings import Settings

Lora = tuple[str, str, float]
"""(name, path or hub name, scale) of an adapter."""


@dataclass(frozen=True, slots=True)
class Model:
    """The loaded engine and everything that calls need with it."""

    engine: Engine
    template: ChatTemplate
    adapters: AdapterNames
    name: str
    """Name of the base model in responses."""
    names: tuple[str, ...]
    """All names of the base model."""
    defaults: Mapping[str, Any]
    """Default sampling parameters."""
    created: int
    """Unix time of the start, in seconds."""
    logit_processors: tuple[str, ...] = ()
    """Logit processors of plugins that requests may name."""

    @property
    def context(self) -> int:
        """Most tokens of a prompt and its answer together."""
        return self.engine.limits.context

    def asked(self, id: str, own_id: str, caller: Caller, most_choices: int) -> Context:
        """Return the protocol's context of a call that begins now."""
        return Context(
            id=id,
            own_id=own_id,
            created=int(time.time()),
            tenant=caller.tenant,
            model=self.name,
            adapter_of=lambda name: self.adapters.of(caller, name),
            tokenizer=self.engine.tokenizer,
            template=self.template,
            defaults=self.defaults,
            context=self.context,
            most_choices=most_choices,
            check_room=partial(self.engine.check_room, tenant=caller.tenant),
            logit_processors=self.logit_processors,
        )


def load(
    config: EngineConfig,
    settings: Settings,
    loras: Sequence[Lora] = (),
    *,
    plugins: Plugins | None = None,
    warming: Callable[[Model], object] = lambda model: None,
    startup: StartupTimes | None = None,
) -> Model:
    """Load the engine, the chat template and the adapters. Raises InfengError.

    plugins: the plugins of ``config``, if known. warming: called with the model before the first call is answered.
    startup: records the duration of each phase.
    """
    times = startup or StartupTimes()
    prepare()
    engine = Engine(config=config, plugins=plugins)
    times.record("engine", engine.startup)
    try:
        check_processors(engine, settings.logit_processors)
        for name, path, scale in loras:
            engine.adapters.load(name, path, scale=scale)
        times.record("adapters")
        directory = engine.model.tokenizer_dir
        override = Path(settings.chat_template) if settings.chat_template else None
        template = find(directory, engine.tokenizer, override=override)
        with contextlib.suppress(RequestError):  # start the template's process before the first conversation
            template.prompt([{"role": "user", "content": "Hello"}])
        reference = str(config.model.path)
        names = settings.names or (name_of(reference),)
        if settings.names and (both := {*names} & {*engine.adapters}):
            taken = min(both)
            raise UsageError(f"--lora {taken}", "the base model has that name (--served-model-name)", "choose another")
        model = Model(
            engine,
            template,
            AdapterNames(engine, (*names, reference), roots=settings.lora_roots, share=settings.share_adapters),
            names[0],
            tuple(names),
            engine.defaults,
            int(time.time()),
            tuple(dict.fromkeys(settings.logit_processors)),
        )
        times.record("template")
        warming(model)
        times.record("warm")
        return model
    except BaseException:
        engine.close()
        raise


def check_processors(engine: Engine, names: Sequence[str]) -> None:
    """Raise UsageError for a logit processor that no plugin provides; the engine's own have request parameters."""
    plugins = [found for found in engine.plugins.manifests if found.usable and found.name != "core"]
    known = {name for found in plugins for name in found.names("logit_processors")}
    for name in names:
        if name not in known:
            there = ", ".join(sorted(known)) or "none"
            raise UsageError(f"logit processor {name}", "no plugin brings it", f"name one of those that are: {there}")


def name_of(reference: str) -> str:
    """Return the default name of a model: the last part of a directory's path, or the hub name."""
    path = Path(reference).expanduser()
    return path.resolve().name if path.exists() else reference
