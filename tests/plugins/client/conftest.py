"""A server for every test of the client."""

from collections.abc import Iterator

import pytest
from fake_openai import FakeServer


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer() as server:
        yield server
