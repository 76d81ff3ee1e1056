"""Who may call by gRPC, and what each sees: the keys, tenants, limits and TLS files of HTTP."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from infeng_serve.auth import Keys
from rpc_parts import Client, Seen, asked, metadata_of, refused
from serve_parts import Running, running, slowed, until
from smg_grpc_proto import vllm_engine_pb2 as pb

FILE = """
alpha-key acme *
beta-key beta bard
root-key ops * admin
"""
UNAUTHENTICATED = grpc.StatusCode.UNAUTHENTICATED


@pytest.fixture(scope="module")
def told() -> Seen:
    return Seen()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path] | None:
    """A certificate and its key; None where nothing is there to make one."""
    if shutil.which("openssl") is None:
        return None
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    made += ["-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    subprocess.run(made, check=True, capture_output=True)
    return cert, key


@pytest.fixture(scope="module")
def kept(
    tmp_path_factory: pytest.TempPathFactory, certificate: tuple[Path, Path] | None, told: Seen
) -> Iterator[Running]:
    """A server that asks for keys, over TLS where there is a certificate, with small bounds."""
    file = tmp_path_factory.mktemp("keys") / "keys"
    file.write_text(FILE)
    cert, key = map(str, certificate) if certificate else (None, None)
    limits = {"max_body": 2000, "max_requests_per_key": 1}
    keys = Keys(["plain-key"], file=file)
    with running(grpc_port=0, keys=keys, tls_cert=cert, tls_key=key, watch=lambda model: [told], **limits) as found:
        yield found


@pytest.fixture(scope="module")
def secure(kept: Running, certificate: tuple[Path, Path] | None) -> Iterator[Client]:
    with Client(kept, grpc.ssl_channel_credentials(certificate[0].read_bytes()) if certificate else None) as found:
        yield found


def services(client: Client, **metadata: str) -> list[str]:
    """Return what reflection lists."""
    stub = reflection_pb2_grpc.ServerReflectionStub(client.channel)
    asked = reflection_pb2.ServerReflectionRequest(list_services="")
    [found] = list(stub.ServerReflectionInfo(iter([asked]), metadata=metadata_of(**metadata), timeout=20))
    return [one.name for one in found.list_services_response.service]


@pytest.mark.parametrize("given", [{}, {"key": "wrong"}, {"key": "plain-key2"}, {"authorization": "Basic plain-key"}])
def test_every_method_but_the_health_checks_denies_without_a_key(secure: Client, told: Seen, given: dict[str, str]):
    metadata = metadata_of(**given)
    calls: list[Any] = [
        lambda: secure.complete(asked(), **given),
        lambda: secure.stub.Embed(pb.EmbedRequest(), metadata=metadata),
        lambda: secure.stub.GetModelInfo(pb.GetModelInfoRequest(), metadata=metadata),
        lambda: secure.stub.Abort(pb.AbortRequest(), metadata=metadata),
        lambda: services(secure, **given),
    ]
    told.records.clear()
    for call in calls:
        code, details, _ = refused(call)
        assert (code, details["ErrorInfo"].reason) == (UNAUTHENTICATED, "invalid_api_key")
    [records] = zip(*told.records.values(), strict=True)
    assert [kind for kind, _ in records] == ["unauthorized"] * len(calls)
    assert records[0][1].route == "/vllm.grpc.engine.VllmEngine/Generate"
    health = health_pb2_grpc.HealthStub(secure.channel)
    assert health.Check(health_pb2.HealthCheckRequest()).status == health_pb2.HealthCheckResponse.SERVING
    assert secure.stub.HealthCheck(pb.HealthCheckRequest()).healthy


def test_a_key_opens_every_method_and_reflection_lists_the_services(secure: Client):
    assert services(secure, key="plain-key") == [
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
        "vllm.grpc.engine.VllmEngine",
    ]
    assert secure.complete(asked(), key="plain-key") == secure.complete(asked(), key="root-key")


def test_a_key_opens_its_adapters_alone(secure: Client):
    assert secure.complete(asked(), key="beta-key", model="bard")
    for model in ("coder", "nobody"):
        code, details, _ = refused(lambda model=model: secure.complete(asked(), key="beta-key", model=model))
        assert (code, details["ErrorInfo"].reason) == (grpc.StatusCode.NOT_FOUND, "model_not_found")
    request = pb.EmbedRequest(tokenized=pb.TokenizedInput(input_ids=[5, 6]))
    code, _, _ = refused(lambda: secure.stub.Embed(request, metadata=metadata_of(key="beta-key", model="coder")))
    assert code == grpc.StatusCode.NOT_FOUND


def test_requests_carry_their_tenant_and_only_admins_see_local_paths(secure: Client, told: Seen):
    told.records.clear()
    secure.complete(asked(id="hers"), key="alpha-key")
    assert [record.tenant for _, record in told.records["hers"]] == ["acme", "acme"]
    paths = {
        key: secure.stub.GetModelInfo(pb.GetModelInfoRequest(), metadata=metadata_of(key=key)).model_path
        for key in ("beta-key", "root-key")
    }
    assert paths["beta-key"] == "model"
    assert Path(paths["root-key"]).is_dir()


def test_a_tenant_cannot_abort_calls_of_another_and_has_its_own_limit(kept: Running, secure: Client):
    with slowed(kept.engine, 0.02):
        call = secure.generate(asked(id="hers", max_tokens=200, ignore_eos=True, stream=True), key="alpha-key")
        next(call)
        abort = pb.AbortRequest(request_ids=["hers"])
        secure.stub.Abort(abort, metadata=metadata_of(key="beta-key"))
        code, details, error = refused(lambda: secure.complete(asked(), key="alpha-key"))
        assert (code, details["ErrorInfo"].reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "rate_limit_exceeded")
        assert int(dict(error.trailing_metadata())["grpc-retry-pushback-ms"]) == 1000
        assert secure.complete(asked(max_tokens=1), key="beta-key")
    assert list(call)[-1].complete.finish_reason == "length"
    assert until(lambda: not kept.server.service.limits.calls)


def test_a_request_and_its_metadata_have_a_bound(secure: Client):
    assert secure.complete(asked("x" * 900), key="plain-key")
    for text, more in (("x" * 3000, {}), ("x", {"large": "x" * 100_000})):
        code, _, _ = refused(lambda text=text, more=more: secure.complete(asked(text), key="plain-key", **more))
        assert code == grpc.StatusCode.RESOURCE_EXHAUSTED


def test_a_compressed_request_has_the_same_bound(secure: Client):
    request, metadata = asked("x" * 100_000), metadata_of(key="plain-key")
    compressed = secure.stub.Generate(request, metadata=metadata, compression=grpc.Compression.Gzip, timeout=20)
    code, _, _ = refused(lambda: list(compressed))
    assert code == grpc.StatusCode.RESOURCE_EXHAUSTED
