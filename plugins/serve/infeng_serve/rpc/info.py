"""Messages about the model, the server and its load."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from smg_grpc_proto import vllm_engine_pb2 as pb

from infeng_core.api import Engine, __version__, model_file, read_json
from infeng_serve.auth import Caller
from infeng_serve.model import Model

RECOMMENDED = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
"""Sampling parameters that clients apply by default."""

SERVER = "infeng-grpc"


def model_info(model: Model, caller: Caller, architectures: list[str]) -> pb.GetModelInfoResponse:
    """Return the model's properties; only admins see local paths."""
    engine = model.engine
    config = engine.model.config
    recommended = {name: model.defaults[name] for name in RECOMMENDED if model.defaults.get(name) is not None}
    return pb.GetModelInfoResponse(
        model_path=_shown(str(engine.config.model.path), caller),
        is_generation=True,
        max_context_length=model.context,
        vocab_size=config.vocab,
        served_model_name=model.name,
        tokenizer_path=_shown(str(engine.model.tokenizer_dir), caller),
        model_type=config.family,
        architectures=architectures,
        eos_token_ids=config.eos_ids,
        bos_token_id=config.bos_id or 0,
        max_req_input_len=model.context - 1,
        default_sampling_params_json=msgspec.json.encode(recommended).decode() if recommended else "",
    )


def architectures(folder: Path) -> list[str]:
    """Return ``architectures`` of a folder's config.json, empty without one."""
    path = model_file(folder, "config.json")
    if not path.is_file():
        return []
    found = read_json(path).get("architectures")
    return [name for name in found if isinstance(name, str)] if isinstance(found, list) else []


def server_info(model: Model, calls: int, is_draining: bool, began: float, last: float) -> pb.GetServerInfoResponse:
    """Return the server's properties. began, last: times of its start and of the last call, Unix time in seconds."""
    config = model.engine.config
    return pb.GetServerInfoResponse(
        active_requests=calls,
        is_paused=is_draining,
        last_receive_timestamp=last,
        uptime_seconds=time.time() - began,
        server_type=SERVER,
        data_parallel_size=1,
        kv_cache_dtype=config.kv_cache.dtype,
        block_size=config.kv_cache.block,
        model_dtype=config.model.format,
        max_num_seqs=config.scheduler.max_running,
        constrained_decoding_start="first_token",
    )


def loads(engine: Engine) -> pb.GetLoadsResponse:
    """Return the engine's load. Thread-safe."""
    load, config = engine.load(), engine.config
    used = load.used_blocks / max(1, load.blocks)
    most = config.scheduler.max_running
    one = pb.SchedulerLoad(
        num_running_reqs=load.running,
        num_waiting_reqs=load.waiting,
        num_total_reqs=load.running + load.waiting,
        num_used_tokens=load.used_blocks * load.tokens // max(1, load.blocks),
        max_total_num_tokens=load.tokens,
        token_usage=used,
        cache_hit_rate=load.prefix_hits / max(1, load.prefix_queries),
        utilization=load.running / most,
        max_running_requests=most,
    )
    return pb.GetLoadsResponse(
        timestamp=datetime.now(UTC).isoformat(), version=__version__, dp_rank_count=1, loads=[one]
    )


def _shown(reference: str, caller: Caller) -> str:
    return reference if caller.is_admin or not Path(reference).exists() else Path(reference).resolve().name
