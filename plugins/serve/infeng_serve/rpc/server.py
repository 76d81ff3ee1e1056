"""The gRPC server, in the event loop of the HTTP server and on the same service."""

from __future__ import annotations

from typing import Any

import grpc
from grpc import aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from smg_grpc_proto import vllm_engine_pb2_grpc

from infeng_core.api import UsageError
from infeng_serve.rpc.call import SERVICE
from infeng_serve.rpc.guard import Guard
from infeng_serve.rpc.servicer import Servicer
from infeng_serve.service import Service
from infeng_serve.settings import Settings
from infeng_serve.sockets import pem

NAMES = (SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class RpcServer:
    """The gRPC server. Methods must be called on the event loop's thread."""

    def __init__(self, service: Service, host: str, port: int) -> None:
        """Prepare to listen at an address; port 0: any free port."""
        self._service = service
        self._host = f"[{host}]" if ":" in host else host or "0.0.0.0"
        self._port = port
        self._health = health.aio.HealthServicer()
        self._server: Any = None
        self.address = ""
        """Host and port, once it listens."""

    async def start(self) -> None:
        """Listen, with health status NOT_SERVING; raises UsageError for a port in use."""
        settings = self._service.settings
        self._server = aio.server(interceptors=[Guard(self._service)], options=options(settings))
        vllm_engine_pb2_grpc.add_VllmEngineServicer_to_server(Servicer(self._service), self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection(NAMES, self._server)
        place = f"{self._host}:{self._port}"
        try:
            if settings.tls_cert:
                port = self._server.add_secure_port(place, credentials(settings.tls_cert, settings.tls_key))
            else:
                port = self._server.add_insecure_port(place)
        except RuntimeError as error:
            remedy = "give another --grpc-port, or 0 for a free one"
            raise UsageError(place, "gRPC cannot listen there", remedy) from error
        self.address = f"{self._host}:{port}"
        await self._tell(NOT_SERVING)
        await self._server.start()

    async def serve(self) -> None:
        """Set the health status to SERVING."""
        await self._tell(SERVING)

    async def drain(self) -> None:
        """Set the health status to NOT_SERVING, for good."""
        await self._health.enter_graceful_shutdown()

    async def stop(self, seconds: float) -> None:
        """Stop; running calls and health watchers get ``seconds`` to end."""
        await self.drain()
        if self._server is not None:
            await self._server.stop(seconds)

    async def _tell(self, status: Any) -> None:
        for name in ("", SERVICE):
            await self._health.set(name, status)


def options(settings: Settings) -> list[tuple[str, int]]:
    """Return HTTP's bounds as gRPC options."""
    return [
        ("grpc.so_reuseport", 0),  # a port in use is an error
        ("grpc.max_receive_message_length", settings.max_body),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_metadata_size", settings.max_head),
        ("grpc.absolute_max_metadata_size", settings.max_head),
        ("grpc.max_allowed_incoming_connections", settings.max_connections),
        (
            "grpc.max_concurrent_streams",
            settings.max_connections,
        ),  # per connection; each HTTP call has its own connection
        ("grpc.server_handshake_timeout_ms", _milliseconds(settings.head_timeout)),
        ("grpc.max_connection_idle_ms", _milliseconds(settings.keep_alive)),
        ("grpc.keepalive_time_ms", _milliseconds(settings.write_timeout)),
    ]


def credentials(cert: str, key: str | None) -> Any:
    """Return TLS credentials from PEM files; without ``key``, the certificate's file has its key too."""
    chain = pem(cert)
    return grpc.ssl_server_credentials([(pem(key) if key else chain, chain)])


def _milliseconds(seconds: float) -> int:
    return max(1, min(int(1000 * seconds), 2**31 - 1))
