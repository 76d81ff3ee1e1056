"""Reading threads go round the tenants."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest
from infeng_serve.readers import Readers


class Gate:
    """Work that begins when it may, and ends when it is told."""

    def __init__(self) -> None:
        """Be closed."""
        self.begun: list[str] = []
        self._open = threading.Event()

    def work(self, name: str) -> Callable[[], str]:
        """Return what notes ``name`` and waits."""

        def wait() -> str:
            self.begun.append(name)
            assert self._open.wait(20)
            return name

        return wait

    def open(self) -> None:
        """Let all go on."""
        self._open.set()


async def begun(gate: Gate, count: int) -> list[str]:
    """Return who has begun, once so many have."""
    for _ in range(2000):
        if len(gate.begun) >= count:
            break
        await asyncio.sleep(0.005)
    await asyncio.sleep(0.05)  # for one too many
    return gate.begun


def test_one_tenant_never_occupies_all_threads():
    async def main() -> None:
        readers, gate = Readers(4), Gate()
        tasks = [asyncio.create_task(readers.run("busy", gate.work(f"busy {k}"))) for k in range(9)]
        assert await begun(gate, 3) == ["busy 0", "busy 1", "busy 2"]
        assert await readers.run("quiet", lambda: "read") == "read"
        gate.open()
        assert await asyncio.gather(*tasks) == [f"busy {k}" for k in range(9)]
        readers.close()

    asyncio.run(main())


def test_queued_calls_are_read_round_robin_by_tenant():
    async def main() -> None:
        readers, gate, order = Readers(1), Gate(), list[str]()
        first = asyncio.create_task(readers.run("a", gate.work("first")))
        await begun(gate, 1)
        names = ["a1", "a2", "a3", "b1", "b2", "c1"]
        tasks = [asyncio.create_task(readers.run(name[0], lambda name=name: order.append(name))) for name in names]
        await asyncio.sleep(0)
        gate.open()
        await asyncio.gather(first, *tasks)
        assert order == ["a1", "b1", "c1", "a2", "b2", "a3"]
        readers.close()

    asyncio.run(main())


def test_exceptions_of_work_are_raised_and_cancelled_work_is_not_run():
    async def main() -> None:
        readers, gate, read = Readers(1), Gate(), list[str]()
        first = asyncio.create_task(readers.run("a", gate.work("first")))
        await begun(gate, 1)
        left = asyncio.create_task(readers.run("a", lambda: read.append("left")))
        await asyncio.sleep(0)
        left.cancel()
        broken = asyncio.create_task(readers.run("a", lambda: 1 // 0))
        await asyncio.sleep(0)
        gate.open()
        assert await first == "first"
        with pytest.raises(ZeroDivisionError):
            await broken
        assert read == []
        readers.close()

    asyncio.run(main())
