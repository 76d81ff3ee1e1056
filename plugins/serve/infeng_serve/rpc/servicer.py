# ruff: noqa: N802  # methods have the service's names
"""The methods of the service."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

from grpc import aio
from smg_grpc_proto import vllm_engine_pb2 as pb
from smg_grpc_proto import vllm_engine_pb2_grpc
from smg_grpc_proto.generated import common_pb2

from infeng_core.api import Request
from infeng_serve.event_queue import EventQueue
from infeng_serve.failures import GoneError, failure
from infeng_serve.generating import Work, owned
from infeng_serve.protocol.errors import ApiError, invalid
from infeng_serve.rpc import bundle, info
from infeng_serve.rpc.call import ID, MODEL, SERVICE, Rpc
from infeng_serve.rpc.fields import given
from infeng_serve.rpc.generate_answer import GenerateAnswer
from infeng_serve.rpc.generate_input import place, read, tokenized
from infeng_serve.rpc.guard import CALLER
from infeng_serve.rpc.running import Running
from infeng_serve.rpc.status import refuse
from infeng_serve.service import Service


class Servicer(vllm_engine_pb2_grpc.VllmEngineServicer):  # type: ignore[misc]  # it has no types
    """Answers calls by the bridge of ``service``."""

    def __init__(self, service: Service) -> None:
        """Until the model is loaded, only health checks are answered."""
        self._service = service
        self._running = Running()
        self._began = self._last = time.time()
        self._archive = b""

    # ------------------------------------------------------------------------------------------------- the model ---

    async def Generate(self, request: pb.GenerateRequest, context: Any) -> None:
        """Generate from a prompt: a chunk for each step, or for several steps if the client is slow, and the end."""
        async with self._call(context, "Generate", request.request_id) as call:
            queue = EventQueue(call.id, self._service.observers)
            work = Work(self._service, call, queue)
            try:
                with self._running.one(call, request.request_id, queue):
                    async with work.under_way():
                        await self._generate(request, context, work)
            except (asyncio.CancelledError, GoneError):
                queue.gone()
                raise
            except Exception as error:
                raise _told(error, call, request) from error

    async def _generate(self, request: pb.GenerateRequest, context: Any, work: Work) -> None:
        answer = await work.submit(partial(_read, request, work))
        if answer.streams:
            await self._stream(context, work.queue, answer)
            return
        for choice, completion in enumerate(await work.queue.all()):
            await self._write(context, answer.complete(choice, completion))

    async def _stream(self, context: Any, queue: EventQueue, answer: GenerateAnswer) -> None:
        left = len(answer.requests)
        while left:
            for choice, events in (await queue.take()).items():
                for message in answer.messages(choice, events):
                    await self._write(context, message)
                left -= events[-1].completion is not None

    async def _write(self, context: Any, message: pb.GenerateResponse) -> None:
        """Send a message; raises GoneError if the client stops reading."""
        try:
            async with asyncio.timeout(self._service.settings.write_timeout):
                await context.write(message)
        except TimeoutError:
            raise GoneError from None

    async def Embed(self, request: pb.EmbedRequest, context: Any) -> pb.EmbedResponse:
        """Return the mean of a prompt's hidden states, normalized to length 1."""
        async with self._call(context, "Embed", request.request_id) as call:
            try:
                return await self._embed(request, call)
            except Exception as error:
                raise _told(error, call, request) from error

    async def _embed(self, request: pb.EmbedRequest, call: Rpc) -> pb.EmbedResponse:
        service = self._service
        with service.taken(call.caller):
            given(request, {"request_id", "tokenized"})
            model = service.model
            ids = tuple(tokenized(request.tokenized, service.context(call.id, call.own_id, call.caller)))
            adapter = model.adapters.of(call.caller, call.header(MODEL.encode()) or model.name)
            model.engine.check_room(len(ids), tenant=call.caller.tenant)
            wanted = owned(Request(ids, adapter=adapter), call.caller, service.settings.request_timeout)
            [vector] = await service.waiters.run(call.caller.tenant, lambda: model.engine.embed([wanted]))
        return pb.EmbedResponse(embedding=vector.tolist(), prompt_tokens=len(ids), embedding_dim=len(vector))

    async def Abort(self, request: pb.AbortRequest, context: Any) -> pb.AbortResponse:
        """End the tenant's calls with these ids, with their tokens so far; unknown ids are ignored."""
        async with self._call(context, "Abort") as call:
            self._running.abort(call.caller, request.request_ids)
            return pb.AbortResponse()

    # ----------------------------------------------------------------------------------------------- information ---

    async def HealthCheck(self, request: pb.HealthCheckRequest, context: Any) -> pb.HealthCheckResponse:
        """Return whether calls are accepted, or why not; needs no key."""
        try:
            self._service.check_open()
        except ApiError as error:
            return pb.HealthCheckResponse(healthy=False, message=error.message)
        return pb.HealthCheckResponse(healthy=True, message="ready")

    async def GetModelInfo(self, request: pb.GetModelInfoRequest, context: Any) -> pb.GetModelInfoResponse:
        """Return the model's properties."""
        async with self._call(context, "GetModelInfo") as call:
            model = self._service.model
            names = await self._service.bridge.run(
                call.caller.tenant, lambda: info.architectures(model.engine.model.tokenizer_dir)
            )
            return info.model_info(model, call.caller, names)

    async def GetServerInfo(self, request: pb.GetServerInfoRequest, context: Any) -> pb.GetServerInfoResponse:
        """Return the server's properties."""
        last = self._last
        async with self._call(context, "GetServerInfo"):
            service = self._service
            return info.server_info(service.model, service.limits.calls, service.is_draining, self._began, last)

    async def GetLoads(self, request: pb.GetLoadsRequest, context: Any) -> pb.GetLoadsResponse:
        """Return the engine's load, without sections that it does not have."""
        async with self._call(context, "GetLoads"):
            if request.dp_rank:
                raise invalid("dp_rank", f"dp_rank: there is rank 0 alone, not {request.dp_rank}")
            return info.loads(self._service.model.engine)

    async def GetTokenizer(self, request: common_pb2.GetTokenizerRequest, context: Any) -> None:
        """Send the tokenizer's files as an archive."""
        async with self._call(context, "GetTokenizer") as call:
            with self._service.taken(call.caller):
                folder = self._service.model.engine.model.tokenizer_dir
                if not self._archive:
                    self._archive = await self._service.bridge.run(call.caller.tenant, lambda: bundle.archive(folder))
                for chunk in bundle.chunks(self._archive):
                    await self._write(context, chunk)

    # --------------------------------------------------------------------------------------- unsupported methods ---

    async def FlushCache(self, request: common_pb2.FlushCacheRequest, context: Any) -> None:
        """Refuse."""
        await self._lacks(context, "FlushCache", "prefixes are evicted when their blocks are needed")

    async def StartProfile(self, request: common_pb2.StartProfileRequest, context: Any) -> None:
        """Refuse."""
        await self._lacks(context, "StartProfile", "an engine is profiled by `infeng run --profile`")

    async def StopProfile(self, request: common_pb2.StopProfileRequest, context: Any) -> None:
        """Refuse."""
        await self._lacks(context, "StopProfile", "an engine is profiled by `infeng run --profile`")

    async def SubscribeKvEvents(self, request: common_pb2.SubscribeKvEventsRequest, context: Any) -> None:
        """Refuse."""
        await self._lacks(context, "SubscribeKvEvents", "the cache publishes no events; use GetLoads")

    async def _lacks(self, context: Any, method: str, why: str) -> None:
        async with self._call(context, method):
            raise ApiError(501, f"{method} is not served: {why}.", code="unimplemented")

    # ------------------------------------------------------------------------------------------------- every call ---

    @contextlib.asynccontextmanager
    async def _call(self, context: Any, method: str, id: str = "") -> AsyncIterator[Rpc]:
        """Run one call; its errors become gRPC codes."""
        call = Rpc(context, f"/{SERVICE}/{method}", CALLER.get(), id)
        self._last = call.wall
        try:
            await context.send_initial_metadata(((ID, call.id),))
            yield call
        except (aio.AbortError, asyncio.CancelledError):
            raise
        except GoneError:
            await refuse(context, ApiError(499, "The call was aborted."))
        except Exception as error:
            await refuse(context, failure(error, call.id))


def _told(error: Exception, call: Rpc, request: pb.GenerateRequest | pb.EmbedRequest) -> ApiError:
    """Return an error for the client, which names the field of the request."""
    told = failure(error, call.id)
    told.param = place(told.param, request) if told.param else None
    return told


def _read(request: pb.GenerateRequest, work: Work) -> GenerateAnswer:
    return read(request, work.call.header(MODEL.encode()), work.context())
