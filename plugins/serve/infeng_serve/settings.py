"""The server's settings: the section ``serve`` of a manifest, as plugin.yaml declares it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Settings:
    """One field for each setting of plugin.yaml, which has defaults and descriptions. Times are in seconds."""

    host: str
    port: int
    grpc_port: int | None
    ready_file: str | None
    names: tuple[str, ...]
    chat_template: str | None
    api_keys: str | None
    lora_roots: tuple[str, ...]
    share_adapters: bool
    warm: tuple[str, ...]
    warm_prompts: tuple[str, ...]
    tls_cert: str | None
    tls_key: str | None
    cors: tuple[str, ...]
    allowed_hosts: tuple[str, ...]
    unknown_parameters: Literal["error", "ignore"]
    max_body: int
    max_head: int
    max_connections: int
    max_requests: int
    max_requests_per_key: int
    max_choices: int
    request_timeout: float
    head_timeout: float
    body_timeout: float
    write_timeout: float
    keep_alive: float
    stream_keep_alive: float
    drain_timeout: float
    journal: str | None
    journal_keep: float
    journal_bytes: int
    journal_sync: bool
    logit_processors: tuple[str, ...]
    threads: int
    metrics_prefix: Literal["infeng", "vllm"]
    access_log: Literal["off", "logfmt", "json"]
    access_log_sample: float
    otlp_endpoint: str | None
    page: bool

    @staticmethod
    def read(values: Mapping[str, Any]) -> Settings:
        """Return the settings from a mapping that has all of them; other keys are ignored."""
        return Settings(**{field.name: values[field.name] for field in fields(Settings)})
