"""Conversion of prompts with parameters to requests of the engine."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from infeng_core.api import Adapters, InfengError, Request, SamplingParams
from infeng_serve.protocol.answer import Context
from infeng_serve.protocol.bounds import check_named
from infeng_serve.protocol.errors import invalid, of
from infeng_serve.protocol.parameters import MOST_PRIORITY, Common
from infeng_serve.protocol.sampling import SEEDS

MOST_REQUESTS = 1024
"""Most requests of one call: its prompts times ``n``."""


LEAST_SECONDS = 0.001
"""Least timeout in seconds; a shorter one is raised to it."""


def check_number(prompts: int, n: int) -> None:
    """Raise ApiError if a call would be too many requests."""
    if prompts * n > MOST_REQUESTS:
        raise invalid("prompt", f"{prompts} prompts with n = {n} are more than {MOST_REQUESTS} requests")


def adapter_of(given: Common, context: Context) -> Adapters | None:
    """Return the adapters that ``model`` and ``adapters`` name, None for the base model; raises ApiError."""
    named = context.adapter_of(context.model if given.model is None else given.model)
    if not given.adapters:
        return named
    if isinstance(named, str):
        raise invalid("adapters", f"adapters: model {given.model} is an adapter already: name the base model there")
    weights: dict[str, float] = {}
    for index, one in enumerate(given.adapters):
        found = context.adapter_of(one.name)
        if found is None:
            raise invalid(f"adapters[{index}].name", f"adapters[{index}].name: {one.name} is the base model")
        for name, weight in ((found, 1.0),) if isinstance(found, str) else found:
            weights[name] = weights.get(name, 0.0) + weight * one.weight
    return tuple(weights.items())


def place(priority: int | None, timeout: float | None) -> tuple[int, float | None]:
    """Return a request's priority and timeout in seconds; raises ApiError for invalid ones."""
    if timeout is not None and not (math.isfinite(timeout) and timeout > 0):
        raise invalid("timeout", f"timeout: {timeout} is not a number of seconds above 0")
    if priority is not None and abs(priority) > MOST_PRIORITY:
        raise invalid("priority", f"priority: {priority} is not an integer of 32 bits")
    return priority or 0, None if timeout is None else max(timeout, LEAST_SECONDS)


def requests(
    given: Common,
    context: Context,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams,
    adapter: Adapters | None,
    n: int = 1,
) -> list[Request]:
    """Return ``n`` requests for each prompt, one prompt after the other; raises ApiError."""
    check_named(sum(len(list(ids)) for ids in params.named_ids().values()), len(prompts) * n)
    priority, timeout = place(given.priority, given.timeout)
    seeds = [params.seed if params.seed is None else (params.seed + choice) % SEEDS for choice in range(n)]
    seeded = [params if seed == params.seed else replace(params, seed=seed) for seed in seeds]
    salt = f"{context.tenant}\0{given.cache_salt}" if given.cache_salt else context.tenant
    try:
        return [
            Request(
                tuple(prompt),
                one,
                priority=priority,
                tenant=context.tenant,
                adapter=adapter,
                timeout=timeout,
                cache_salt=salt,
            )
            for prompt in prompts
            for one in seeded
        ]
    except InfengError as error:
        raise of(error) from None
