"""Adapters that come and go while the server runs: vLLM's way, and llama.cpp's."""

from __future__ import annotations

import asyncio

import msgspec

from infeng_serve.http import TEXT, Call
from infeng_serve.protocol.errors import ApiError
from infeng_serve.protocol.model_types import AdapterEntry, AdapterScale, LoadAdapter, Success, UnloadAdapter
from infeng_serve.protocol.reading import decode
from infeng_serve.service import Service


async def load(service: Service, call: Call) -> None:
    """Load an adapter under a name."""
    with service.taken(call.caller):
        wanted = decode(await call.body(service.settings), LoadAdapter)
        name, path, replace = wanted.lora_name, wanted.lora_path, wanted.load_inplace
        load = service.model.adapters.load
        await asyncio.to_thread(load, call.caller, name, path, replace=replace)  # beside those that read calls
    await call.respond(200, f"Success: LoRA adapter '{name}' added successfully.".encode(), kind=TEXT)


async def unload(service: Service, call: Call) -> None:
    """Forget the adapter of a name."""
    with service.taken(call.caller):
        name = decode(await call.body(service.settings), UnloadAdapter).lora_name
        await asyncio.to_thread(service.model.adapters.unload, call.caller, name)
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
    wanted = decode(await call.body(service.settings), list[AdapterScale])
    adapters = service.model.adapters
    visible = list(adapters.visible(call.caller).values())
    for weight in wanted:
        if not 0 <= weight.id < len(visible):
            raise ApiError(400, f"There is no adapter {weight.id}; GET /lora-adapters lists all.", param="id")
    adapters.set_mix(call.caller, {visible[weight.id]: weight.scale for weight in wanted})
    await call.respond(200, msgspec.json.encode(Success()))
