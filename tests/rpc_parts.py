"""A client of the gRPC service, and what its requests and errors hold."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from infeng_serve.observers import Record
from serve_parts import Running
from smg_grpc_proto import vllm_engine_pb2 as pb
from smg_grpc_proto import vllm_engine_pb2_grpc


class Seen:
    """An observer that keeps records and counts tokens."""

    def __init__(self) -> None:
        self.records: dict[str, list[tuple[str, Record]]] = {}
        self.new = 0

    def accepted(self, record: Record) -> None:
        self.records.setdefault(record.id, []).append(("accepted", record))

    def tokens(self, record: Record, new: int, now: float) -> None:
        self.new += new

    def ended(self, record: Record) -> None:
        self.records.setdefault(record.id, []).append(("ended", record))

    def rejected(self, record: Record, reason: str) -> None:
        self.records.setdefault(record.id, []).append((reason, record))

    def kinds(self, id: str) -> list[str]:
        return [kind for kind, _ in self.records.get(id, [])]


class Client:
    """A channel of its own to a served model."""

    def __init__(self, served: Running, credentials: Any = None) -> None:
        options = [("grpc.use_local_subchannel_pool", 1)]
        address = served.server.grpc_address
        self.channel = (
            grpc.insecure_channel(address, options)
            if credentials is None
            else grpc.secure_channel(address, credentials, options)
        )
        self.stub = vllm_engine_pb2_grpc.VllmEngineStub(self.channel)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.channel.close()

    def generate(self, request: Any, **metadata: str) -> Iterator[Any]:
        """Return the call, which gives the responses; ``metadata`` as ``key=``, ``model=``."""
        return self.stub.Generate(request, metadata=metadata_of(**metadata), timeout=60)

    def complete(self, request: Any, **metadata: str) -> list[Any]:
        """Return the complete messages of a call, by their choices."""
        found = [one.complete for one in self.generate(request, **metadata) if one.HasField("complete")]
        return sorted(found, key=lambda one: one.index)


def metadata_of(key: str = "", **more: str) -> list[tuple[str, str]]:
    """Return metadata with a key and more."""
    given = [(name.replace("_", "-"), value) for name, value in more.items()]
    return [*given, ("authorization", f"Bearer {key}")] if key else given


def asked(text: str = "Once upon a time", *, stream: bool = False, id: str = "", **params: Any) -> Any:
    """Return a GenerateRequest of a text, greedy with 12 tokens if nothing else is given."""
    sampling = pb.SamplingParams(**{"temperature": 0.0, "max_tokens": 12, "skip_special_tokens": True, **params})
    return pb.GenerateRequest(request_id=id, text=text, sampling_params=sampling, stream=stream)


def refused(work: Any) -> tuple[Any, dict[str, Any], Any]:
    """Return the code, the details by their types, and the error of a call that is refused."""
    with pytest.raises(grpc.RpcError) as caught:
        work()
    error = caught.value
    trailing = dict(error.trailing_metadata())
    status = status_pb2.Status.FromString(trailing.get("grpc-status-details-bin", b""))
    details: dict[str, Any] = {}
    for packed in status.details:
        for kind in (error_details_pb2.ErrorInfo, error_details_pb2.BadRequest, error_details_pb2.RetryInfo):
            if packed.Is(kind.DESCRIPTOR):
                found = kind()
                packed.Unpack(found)
                details[kind.__name__] = found
    return error.code(), details, error


def field(details: dict[str, Any]) -> str:
    """Return the field at fault."""
    return str(details["BadRequest"].field_violations[0].field)
