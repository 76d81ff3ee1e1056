"""Events of one call, between the steps that give them and the call that sends them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from infeng_serve.event_queue import EventQueue, News
from infeng_serve.observers import Record
from infeng_serve.protocol.errors import ApiError

from infeng_core.api import Event

Sleeper = Callable[[EventQueue, Callable[[str], None]], Awaitable[None]]


def told(run: Sleeper) -> None:
    """Run a scenario: it is given a queue of one choice, and what makes a step give that choice a text."""

    async def scenario() -> None:
        queue = EventQueue("one", ())
        choice = queue.add(Record("one", "/", "", ""))

        def step(text: str) -> None:
            queue.put(choice, Event(0, text, (7,)), 1.0)
            queue.tell()

        await run(queue, step)

    asyncio.run(scenario())


async def asleep(queue: EventQueue) -> asyncio.Task[News]:
    """Return a call that sleeps for news."""
    task = asyncio.ensure_future(queue.take())
    await asyncio.sleep(0)
    return task


def texts(news: News) -> list[str]:
    return [event.text for events in news.values() for event in events]


def test_events_taken_at_once_do_not_wake_the_call_and_are_not_repeated():
    async def run(queue: EventQueue, step: Callable[[str], None]) -> None:
        taken: list[str] = []
        queue.at_once = lambda news: taken.extend(texts(news)) is None
        call = await asleep(queue)
        step("a")
        step("b")
        await asyncio.sleep(0)
        assert taken == ["a", "b"] and not call.done()
        queue.at_once = None
        step("c")
        assert texts(await call) == ["c"]

    told(run)


def test_events_not_taken_at_once_wake_the_call_which_gets_all():
    async def run(queue: EventQueue, step: Callable[[str], None]) -> None:
        queue.at_once = lambda news: False
        call = await asleep(queue)
        step("a")
        step("b")
        assert texts(await call) == ["a", "b"]

    told(run)


def test_no_event_is_taken_at_once_while_the_call_works():
    async def run(queue: EventQueue, step: Callable[[str], None]) -> None:
        def never(news: News) -> bool:
            raise AssertionError("it would come before what the call is sending")

        queue.at_once = never
        step("a")
        step("b")
        assert texts(await queue.take()) == ["a", "b"]

    told(run)


def test_an_error_while_taking_events_ends_that_call_only():
    async def run(queue: EventQueue, step: Callable[[str], None]) -> None:
        def broken(news: News) -> bool:
            raise ZeroDivisionError

        queue.at_once = broken
        call = await asleep(queue)
        step("a")
        with pytest.raises(ApiError) as found:
            await call
        assert found.value.status == 500

    told(run)
