"""A registry over contents chosen by a test, without a backend."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from adapter_parts import Store

from infeng_core.adapters.registry import Registry


@pytest.fixture
def store() -> Store:
    return Store()


MakeRegistry = Callable[..., Registry]


@pytest.fixture
def make(store: Store) -> Iterator[MakeRegistry]:
    """Return ``make(most=4, budget=None)``; registries are closed after the test."""
    made: list[Registry] = []

    def registry(most: int = 4, budget: int | None = None, **more: Any) -> Registry:
        made.append(Registry(store.read, store.place, most=most, budget=budget, **more))
        return made[-1]

    yield registry
    store.gate.set()
    for one in made:
        one.close()
