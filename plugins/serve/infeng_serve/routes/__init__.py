"""The routes of the server."""

from __future__ import annotations

from infeng_serve.app import Route
from infeng_serve.routes import adapters, embeddings, generation, metrics, models, status, tokens


def table() -> dict[str, Route]:
    """Return all routes by path; a path that ends with / matches every path that begins with it."""
    return {
        "/health": Route({"GET": status.health}, is_open=True),
        "/ready": Route({"GET": status.ready}, is_open=True),
        "/version": Route({"GET": status.version}),
        "/metrics": Route({"GET": metrics.metrics}),
        "/load": Route({"GET": status.load}),
        "/v1/models": Route({"GET": models.listed}),
        "/v1/models/": Route({"GET": models.one}),
        "/v1/load_lora_adapter": Route({"POST": adapters.load}),
        "/v1/unload_lora_adapter": Route({"POST": adapters.unload}),
        "/lora-adapters": Route({"GET": adapters.listed, "POST": adapters.mix}),
        "/v1/embeddings": Route({"POST": embeddings.embeddings}),
        "/tokenize": Route({"POST": tokens.tokenize}),
        "/detokenize": Route({"POST": tokens.detokenize}),
        **generation.routes(),
    }
