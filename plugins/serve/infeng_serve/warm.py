"""Warm-up before the first call: loads adapters into memory and computes prompts for the prefix cache."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from infeng_core.api import Engine, Request, ResourceError, UsageError, get_logger, read_bytes
from infeng_serve.auth import Caller, Keys
from infeng_serve.generating import salted
from infeng_serve.model import Model
from infeng_serve.protocol import chat, completions, responses
from infeng_serve.protocol.answer import Read
from infeng_serve.protocol.errors import ApiError
from infeng_serve.settings import Settings

LARGEST = 64 << 20
"""Most bytes of a file of prompts."""

READS: dict[str, Read] = {"messages": chat.read, "prompt": completions.read, "input": responses.read}
"""Readers of bodies, by the key that identifies the kind of call."""

THINGS = ("adapters",)
"""Valid values of ``serve.warm``."""

_log = get_logger(__name__)


@dataclass(frozen=True)
class WarmPrompt:
    """A line of a file of prompts: the body of a call whose prompt is computed."""

    place: str
    """File and line, for errors."""
    read: Read
    body: bytes
    tenant: str | None
    """The tenant to compute the prompt for; None: all tenants."""


class Warming:
    """The warm-up that the settings ask for. Files are read at once, so that errors come before the model is loaded."""

    def __init__(self, settings: Settings, keys: Keys) -> None:
        """Read the files; raises UsageError."""
        for name in settings.warm:
            if name not in THINGS:
                raise UsageError(f"serve.warm: {name}", "it cannot be warmed", f"known: {', '.join(THINGS)}")
        self._warms_adapters = "adapters" in settings.warm
        self._prompts = [prompt for path in settings.warm_prompts for prompt in read_prompts(Path(path))]
        self._keys = keys

    def run(self, model: Model) -> None:
        """Load adapters and compute prompts on this thread; raises UsageError or AdapterError."""
        if self._warms_adapters:
            load_adapters(model.engine)
        if self._prompts:
            begin = time.perf_counter()
            count = tokens = 0
            for request in self._requests(model):
                tokens += model.engine.generate(request)[0].usage.prompt_tokens
                count += 1
            _log.info("prompts warmed", prompts=count, tokens=tokens, seconds=round(time.perf_counter() - begin, 3))
            _check_room(model.engine, tokens)

    def _requests(self, model: Model) -> Iterator[Request]:
        """Yield a request for each prompt and tenant, made the same way as for calls; raises UsageError."""
        for prompt in self._prompts:
            callers = [who for who in self._keys.callers if prompt.tenant in (None, who.tenant)]
            if not callers:
                why = f"no key has the tenant {prompt.tenant!r}"
                raise UsageError(prompt.place, why, "name one of the file of keys, or none for all")
            done: set[str] = set()
            unseen: ApiError | None = None
            for caller in callers:
                try:
                    request = None if caller.tenant in done else _request(prompt, model, caller)
                except ApiError as error:
                    if error.code != "model_not_found":
                        raise _told(prompt, error) from error
                    unseen = error  # this key may not use the adapter; others may
                else:
                    done.add(caller.tenant)
                    if request is not None:
                        yield request
            if not done and unseen is not None:
                raise _told(prompt, unseen) from unseen


def _told(prompt: WarmPrompt, error: ApiError) -> UsageError:
    return UsageError(prompt.place, error.message, "mend the line, or leave it out")


def read_prompts(path: Path) -> list[WarmPrompt]:
    """Return the prompts of a file: each nonempty line is the JSON body of a call, with an optional ``tenant``.

    Raises UsageError with the line number.
    """
    data = read_bytes(path, LARGEST, UsageError, "give a readable file of prompts, or split it")
    lines = enumerate(data.split(b"\n"), 1)
    return [_prompt(f"{path}:{number}", line) for number, line in lines if line.strip()]


def _prompt(place: str, line: bytes) -> WarmPrompt:
    remedy = 'write {"messages": [...]} or {"prompt": "..."}, with "model" for an adapter and "tenant"'
    try:
        fields: dict[str, Any] = msgspec.json.decode(line, type=dict[str, Any])
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise UsageError(place, f"it is not a JSON object ({error})", remedy) from None
    tenant = fields.pop("tenant", None)
    if not isinstance(tenant, str | None):
        raise UsageError(place, "tenant is not a text", remedy)
    kinds = [key for key in READS if key in fields]
    if len(kinds) != 1:
        raise UsageError(place, f"it needs one of {', '.join(READS)}, and has {len(kinds)}", remedy)
    return WarmPrompt(place, READS[kinds[0]], msgspec.json.encode(fields), tenant)


def _request(prompt: WarmPrompt, model: Model, caller: Caller) -> Request:
    """Return the request that computes a prompt into the tenant's prefix cache, uncharged; raises ApiError."""
    answer = prompt.read(prompt.body, model.asked("warm", "warm", caller, most_choices=16))
    asked = answer.requests[0]
    params = replace(asked.params, max_tokens=1, min_tokens=0, prompt_logprobs=None)
    return replace(asked, params=params, tenant="", cache_salt=salted(caller, asked.cache_salt), timeout=None)


def load_adapters(engine: Engine) -> None:
    """Load the engine's adapters into memory, as many as fit; raises AdapterError for a broken one."""
    infos, most = engine.adapters.infos(), engine.config.adapters.most_resident
    pinned: list[str] = []
    try:
        for info in infos[:most]:
            if not info.pinned:
                engine.adapters.pin(info.name)
                pinned.append(info.name)
    except ResourceError as error:
        _log.warning("not all adapters have room", loaded=len(pinned), of=len(infos), reason=str(error))
    finally:
        for name in pinned:  # loaded adapters may be evicted later
            engine.adapters.pin(name, False)
    if len(infos) > most:
        remedy = "raise adapters.max_resident"
        _log.warning("not all adapters have room", loaded=len(pinned), of=len(infos), remedy=remedy)


def _check_room(engine: Engine, tokens: int) -> None:
    """Warn if the cache cannot hold all computed prompts: the first ones were evicted."""
    room = engine.load().tokens
    if not engine.config.kv_cache.prefix:
        _log.warning("prompts were computed in vain", reason="kv_cache.prefix is false")
    elif tokens > room:
        _log.warning("the cache does not hold all prompts", tokens=tokens, room=room, remedy="raise kv_cache.memory")
