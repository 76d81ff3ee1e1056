"""Adapters that come and go while the server runs: vLLM's way, and llama.cpp's."""

from __future__ import annotations

from functools import partial
from typing import TypeVar

import msgspec

from infeng_core.api import printable
from infeng_serve.http import TEXT, Call
from infeng_serve.protocol.errors import ApiError, invalid
from infeng_serve.protocol.model_types import AdapterEntry, AdapterScale, LoadAdapter, Success, UnloadAdapter
from infeng_serve.protocol.reading import decode
from infeng_serve.service import Service

MOST_BODY = 1 << 20
"""Bytes of a body of these routes: names, paths and weights."""

T = TypeVar("T")


async def load(service: Service, call: Call) -> None:
    """Load an adapter under a name."""
    with service.taken(call.caller):
        wanted = await _read(service, call, LoadAdapter)
        name, path, replace = wanted.lora_name, wanted.lora_path, wanted.load_inplace
        load = partial(service.model.adapters.load, call.caller, name, path, replace=replace)
        await service.waiters.run(call.caller.tenant, load)
    await call.respond(200, f"Success: LoRA adapter '{name}' added successfully.".encode(), kind=TEXT)


async def unload(service: Service, call: Call) -> None:
    """Forget the adapter of a name."""
    with service.taken(call.caller):
        name = (await _read(service, call, UnloadAdapter)).lora_name
        unload = partial(service.model.adapters.unload, call.caller, name)
        await service.waiters.run(call.caller.tenant, unload)
    await call.respond(200, f"Success: LoRA adapter '{name}' removed successfully.".encode(), kind=TEXT)


async def listed(service: Service, call: Call) -> None:
    """Answer the adapters, numbered, with the weights that they have on the base model."""
    adapters = service.model.adapters
    weights = adapters.mix(call.caller)
    found = [
        AdapterEntry(id=number, path=name, scale=weights.get(inner, 0.0))
        for number, (name, inner) in enumerate(adapters.visible(call.caller).items())
    ]
    await call.respond(200, msgspec.json.encode(found))


async def mix(service: Service, call: Call) -> None:
    """Lay adapters on the base model, for this key's calls; those that are not listed get no weight."""
    with service.taken(call.caller):
        wanted: list[AdapterScale] = await _read(service, call, list[AdapterScale])
        adapters = service.model.adapters
        visible = list(adapters.visible(call.caller).values())
        for index, weight in enumerate(wanted):
            if not 0 <= weight.id < len(visible):
                why = f"There is no adapter {printable(str(weight.id), 32)}; GET /lora-adapters lists all."
                raise invalid(f"[{index}].id", why)
        weights = {visible[weight.id]: weight.scale for weight in wanted}
        try:
            await service.waiters.run(call.caller.tenant, partial(adapters.set_mix, call.caller, weights))
        except ApiError as error:
            if error.param == "scale":  # of the largest
                error.param = f"[{max(range(len(wanted)), key=lambda index: abs(wanted[index].scale))}].scale"
            raise
    await call.respond(200, msgspec.json.encode(Success()))


async def _read(service: Service, call: Call, type: type[T]) -> T:
    """Return a body as ``type``, on a reading thread; raises ApiError."""
    body, ignored = await service.body(call, MOST_BODY), service.ignored()
    found = await service.readers.run(call.caller.tenant, partial(decode, body, type, ignored))
    call.extra += ignored.headers(call.id)
    return found
