"""Adapters that come and go while the server runs: vLLM's way, and llama.cpp's."""

from __future__ import annotations

import msgspec

from infeng_serve.http import TEXT, Call
from infeng_serve.protocol.errors import ApiError
from infeng_serve.protocol.model_types import AdapterEntry, AdapterScale, LoadAdapter, Success, UnloadAdapter
from infeng_serve.protocol.reading import decode
from infeng_serve.service import Service


async def load(service: Service, call: Call) -> None:
    """Load an adapter under a name."""
    wanted = decode(await call.body(service.settings), LoadAdapter)
    adapters = service.model.adapters
    await service.bridge.run(
        lambda: adapters.load(call.caller, wanted.lora_name, wanted.lora_path, replace=wanted.load_inplace)
    )
    await call.respond(200, f"Success: LoRA adapter '{wanted.lora_name}' added successfully.".encode(), kind=TEXT)


async def unload(service: Service, call: Call) -> None:
    """Forget the adapter of a name."""
    wanted = decode(await call.body(service.settings), UnloadAdapter)
    adapters = service.model.adapters
    await service.bridge.run(lambda: adapters.unload(call.caller, wanted.lora_name))
    await call.respond(200, f"Success: LoRA adapter '{wanted.lora_name}' removed successfully.".encode(), kind=TEXT)


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
