"""Routes that load, unload and weight adapters, as in vLLM and llama.cpp."""

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
"""Most bytes of a body of these routes, which has names, paths and weights."""

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
    """Unload the adapter of a name."""
    with service.taken(call.caller):
        name = (await _read(service, call, UnloadAdapter)).lora_name
        unload = partial(service.model.adapters.unload, call.caller, name)
        await service.waiters.run(call.caller.tenant, unload)
    await call.respond(200, f"Success: LoRA adapter '{name}' removed successfully.".encode(), kind=TEXT)


async def listed(service: Service, call: Call) -> None:
    """List the adapters with numbers and the weights with which they are merged into the base model."""
    adapters = service.model.adapters
    weights = adapters.mix(call.caller)
    found = [
        AdapterEntry(id=number, path=name, scale=weights.get(inner, 0.0))
        for number, (name, inner) in enumerate(adapters.visible(call.caller).items())
    ]
    await call.respond(200, msgspec.json.encode(found))


async def mix(service: Service, call: Call) -> None:
    """Merge adapters into the base model for this key's calls; adapters that are not listed get weight 0."""
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
    """Decode a body as ``type`` on a reader thread; raises ApiError."""
    body, ignored = await service.body(call, MOST_BODY), service.ignored()
    found = await service.readers.run(call.caller.tenant, partial(decode, body, type, ignored))
    call.extra += ignored.headers(call.id)
    return found
