"""Performs the steps of a call with asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx

from infeng_client.sending import Came, Give, Read, Send, Wait
from infeng_client.transport import as_error, reply_of, request_of


class AsyncExchange:
    """Performs the steps of one call, with one response at a time."""

    is_cancelled = False
    """Always False: a cancelled task raises by itself; only threads need a flag."""

    def __init__(self, http: httpx.AsyncClient, base: str, api_key: str | None) -> None:
        """Start without a response."""
        self._http = http
        self._base = base
        self._api_key = api_key
        self._response: httpx.Response | None = None
        self._body: AsyncIterator[bytes] | None = None

    async def perform(self, step: Send | Read | Wait | Give) -> Came:
        """Perform one step and return its result."""
        if isinstance(step, Wait):
            await asyncio.sleep(step.seconds)
            return None
        assert not isinstance(step, Give)
        try:
            if isinstance(step, Send):
                return await self._send(step)
            return b"" if self._body is None else await anext(self._body, b"")
        except httpx.RequestError as error:
            return as_error(error, self._base)

    async def _send(self, step: Send) -> Came:
        await self.close()
        response = await self._http.send(request_of(self._http, step, self._base, self._api_key), stream=True)
        self._response = response
        if step.stream and response.status_code < 400:
            self._body = response.aiter_bytes()
            return reply_of(response, b"")
        try:
            return reply_of(response, await response.aread())
        except httpx.RequestError as error:
            return as_error(error, self._base, begun=True)
        finally:
            await self.close()

    async def close(self) -> None:
        """Close the response, which tells the server to stop."""
        response, self._response, self._body = self._response, None, None
        if response is not None:
            await response.aclose()

    def forgives(self, error: BaseException) -> bool:
        """Return whether an error results from ``cancel``, which asyncio does not need: False."""
        return False
