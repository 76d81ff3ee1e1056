"""The life of the gRPC server beside HTTP's: loading, serving, draining; and what keeps it from its start."""

from __future__ import annotations

import sys
import threading

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from infeng_serve.model import Model
from infeng_serve.server import Server
from infeng_serve.settings import Settings
from rpc_parts import Client, asked, refused
from serve_parts import demo_model, running, settings_of, slowed, until
from smg_grpc_proto import vllm_engine_pb2 as pb

from infeng_core.api import UsageError

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.mark.slow
def test_health_is_reported_from_loading_to_the_end_and_running_calls_may_end():
    go = threading.Event()

    def late(settings: Settings) -> Model:
        assert go.wait(30)
        return demo_model(settings)

    with running(grpc_port=0, drain_timeout=1.0, model=late, waits=False) as served:
        assert until(lambda: served.server.grpc_address)
        with Client(served) as client:
            watch = health_pb2_grpc.HealthStub(client.channel).Watch(health_pb2.HealthCheckRequest(), timeout=60)
            assert next(watch).status == NOT_SERVING
            assert client.stub.HealthCheck(pb.HealthCheckRequest()).message == "Loading model"
            code, _, error = refused(lambda: client.complete(asked()))
            assert code == grpc.StatusCode.UNAVAILABLE
            assert dict(error.trailing_metadata())["retry-after-ms"] == "1000"
            go.set()
            assert next(watch).status == SERVING
            assert client.stub.HealthCheck(pb.HealthCheckRequest()).healthy
            with slowed(served.engine, 0.02):
                short, long = (
                    client.generate(asked(stream=True, max_tokens=most, ignore_eos=True)) for most in (8, 400)
                )
                next(short), next(long)
                served.server.stop()
                assert next(watch).status == NOT_SERVING
                assert not client.stub.HealthCheck(pb.HealthCheckRequest()).healthy
                code, details, _ = refused(lambda: client.complete(asked()))
                assert (code, details["ErrorInfo"].reason) == (grpc.StatusCode.UNAVAILABLE, "shutting_down")
                assert list(short)[-1].complete.finish_reason == "length"
                code, details, _ = refused(lambda: list(long))
                assert (code, details["ErrorInfo"].reason) == (grpc.StatusCode.UNAVAILABLE, "shutting_down")
                served.thread.join(30)
                assert not served.thread.is_alive()


def test_a_port_in_use_is_an_error_before_anything_is_loaded():
    from infeng_serve.server import listening

    taken = listening("127.0.0.1", 0)
    with pytest.raises(UsageError, match=r"in use.*--grpc-port"):
        Server(settings_of(grpc_port=taken.getsockname()[1]), lambda: pytest.fail("loaded"))
    taken.close()


@pytest.mark.parametrize("module", ["grpc", "grpc_health.v1", "grpc_reflection.v1alpha", "smg_grpc_proto"])
def test_without_the_extra_the_error_names_it(monkeypatch: pytest.MonkeyPatch, module: str):

    for name in [name for name in sys.modules if name.startswith("infeng_serve.rpc")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UsageError, match=r"not installed.*infeng-serve\[grpc\]"):
        Server(settings_of(grpc_port=0), lambda: pytest.fail("loaded"))
    Server(settings_of(), lambda: pytest.fail("loaded"))._socket.close()
