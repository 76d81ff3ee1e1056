"""What the server tells of itself, its model and its load."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import zipfile
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from infeng_demo import model_dir
from infeng_serve.protocol.errors import ApiError
from infeng_serve.rpc.bundle import CHUNK, archive
from infeng_serve.rpc.call import address
from rpc_parts import Client, asked, refused
from serve_parts import Running, slowed, until
from smg_grpc_proto import vllm_engine_pb2 as pb
from smg_grpc_proto.generated import common_pb2

from infeng_core.api import __version__


def test_the_model_info_matches_the_models_files(served: Running, client: Client):
    found = client.stub.GetModelInfo(pb.GetModelInfoRequest())
    config = json.loads((model_dir() / "config.json").read_text())
    assert found.is_generation
    assert not found.supports_vision
    assert (found.model_type, list(found.architectures)) == (config["model_type"], config["architectures"])
    assert (found.vocab_size, found.bos_token_id) == (config["vocab_size"], config["bos_token_id"])
    assert list(found.eos_token_ids) == [config["eos_token_id"]]
    assert found.served_model_name == found.model_path == "model"
    assert found.max_context_length == served.engine.limits.context


def test_server_info_and_loads_are_served_under_load(served: Running, client: Client):
    assert client.stub.GetServerInfo(pb.GetServerInfoRequest()).active_requests == 0
    with slowed(served.engine, 0.02):
        call = client.generate(asked(max_tokens=100, ignore_eos=True, stream=True))
        next(call)
        info = client.stub.GetServerInfo(pb.GetServerInfoRequest())
        loads = client.stub.GetLoads(pb.GetLoadsRequest(include=["core"]))
        call.cancel()
    assert (info.active_requests, info.max_num_seqs, info.is_paused) == (1, 2, False)
    assert (info.constrained_decoding_start, info.server_type) == ("first_token", "infeng-grpc")
    assert info.uptime_seconds > 0
    [load] = loads.loads
    assert (loads.version, loads.dp_rank_count) == (__version__, 1)
    assert (load.num_running_reqs, load.num_total_reqs, load.max_running_requests) == (1, 1, 2)
    assert 0 < load.num_used_tokens <= load.max_total_num_tokens
    assert load.token_usage == pytest.approx(load.num_used_tokens / load.max_total_num_tokens)
    assert until(lambda: served.blocks_in_use() == 0)


def test_the_tokenizer_comes_whole_with_its_digest(client: Client):
    chunks = list(client.stub.GetTokenizer(common_pb2.GetTokenizerRequest()))
    data = b"".join(chunk.data for chunk in chunks)
    assert [bool(chunk.sha256) for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1].sha256 == hashlib.sha256(data).hexdigest()
    assert max(len(chunk.data) for chunk in chunks) <= CHUNK
    with zipfile.ZipFile(io.BytesIO(data)) as found:
        assert {"tokenizer.json", "tokenizer_config.json", "config.json"} <= set(found.namelist())
        assert found.read("tokenizer.json") == (model_dir() / "tokenizer.json").read_bytes()
        assert not [name for name in found.namelist() if "safetensors" in name]
    assert data == archive(model_dir())


def test_a_folder_without_a_tokenizer_is_not_found(tmp_path: Path):
    (tmp_path / "model.safetensors").write_bytes(b"x")
    with pytest.raises(ApiError, match="no tokenizer files"):
        archive(tmp_path)


@pytest.mark.parametrize("name", ["x.tiktoken", "x.jinja", "tiktoken.model", "notes.txt"])
def test_only_files_that_the_engine_reads_are_sent(tmp_path: Path, name: str):
    shutil.copytree(model_dir(), tmp_path / "model")
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "model" / name).symlink_to(tmp_path / "secret")
    assert archive(tmp_path / "model") == archive(model_dir())


@pytest.mark.parametrize("name", ["tokenizer.json", "merges.txt", "chat_template.jinja", "chat_template.x.jinja"])
@pytest.mark.parametrize("make", [lambda path: path.symlink_to("/etc/passwd"), lambda path: path.symlink_to("../x")])
def test_no_file_is_sent_if_a_link_leads_out_of_the_model(tmp_path: Path, name: str, make: Any):
    folder = tmp_path / "model"
    shutil.copytree(model_dir(), folder)
    (tmp_path / "x").write_text("secret")
    (folder / name).unlink(missing_ok=True)
    make(folder / name)
    with pytest.raises(ApiError) as caught:
        archive(folder)
    assert caught.value.status == 404 and str(tmp_path) not in caught.value.message


def test_the_links_of_the_hub_s_cache_are_followed(tmp_path: Path):
    folder, blobs = tmp_path / "snapshots" / "main", tmp_path / "blobs"
    folder.mkdir(parents=True)
    shutil.copytree(model_dir(), blobs)
    for path in blobs.iterdir():
        (folder / path.name).symlink_to(f"../../blobs/{path.name}")
    assert archive(folder) == archive(model_dir())


def test_health_is_reported_for_the_server_and_the_service_only(client: Client):
    health = health_pb2_grpc.HealthStub(client.channel)
    for name in ("", "vllm.grpc.engine.VllmEngine"):
        found = health.Check(health_pb2.HealthCheckRequest(service=name))
        assert found.status == health_pb2.HealthCheckResponse.SERVING
    code, _, _ = refused(lambda: health.Check(health_pb2.HealthCheckRequest(service="another")))
    assert code == grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize(
    ("peer", "shown"),
    [("ipv4:127.0.0.1:4711", "127.0.0.1"), ("ipv6:%5B::1%5D:4711", "::1"), ("unix:/tmp/x", "unix:/tmp/x")],
)
def test_a_peer_is_shown_by_its_address(peer: str, shown: str):
    assert address(peer) == shown
