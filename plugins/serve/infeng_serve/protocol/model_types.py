"""Bodies of /v1/models and of the routes that load, unload and weight adapters."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta


class ModelCard(msgspec.Struct, kw_only=True):
    """The base model or an adapter, which is listed as a model."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "infeng"
    root: Annotated[str, Meta(description="where it comes from")]
    parent: Annotated[str | None, Meta(description="the base model of an adapter")] = None
    max_model_len: Annotated[int, Meta(description="tokens of prompt and answer together")]
    defaults: Annotated[
        dict[str, Any] | msgspec.UnsetType,
        Meta(description="the base's own sampling parameters, which hold where a call gives none"),
    ] = msgspec.UNSET


class ModelList(msgspec.Struct, kw_only=True):
    """A page of the models that the key may use."""

    object: Literal["list"] = "list"
    data: list[ModelCard]
    has_more: Annotated[bool, Meta(description="whether ?after=LAST_ID has more")] = False
    last_id: Annotated[str | None, Meta(description="of the last model here, where there are more")] = None


class LoadAdapter(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of /v1/load_lora_adapter."""

    lora_name: Annotated[str, Meta(description="the name that requests choose it by")]
    lora_path: Annotated[str, Meta(description="a directory, or a hub name", extra_json_schema={"minLength": 1})]
    load_inplace: Annotated[
        bool,
        Meta(description="read these files in the place of those of a name that is there; of an empty path, its own"),
    ] = False


class UnloadAdapter(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of /v1/unload_lora_adapter."""

    lora_name: str


class AdapterScale(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """An item of the body of POST /lora-adapters."""

    id: Annotated[int, Meta(description="as GET /lora-adapters lists it", extra_json_schema={"minimum": 0})]
    scale: Annotated[float, Meta(description="its weight on the base model for this key's calls")]


class AdapterEntry(msgspec.Struct, kw_only=True):
    """An item of the body of GET /lora-adapters."""

    id: int
    path: str
    scale: float


class Success(msgspec.Struct, kw_only=True):
    """The confirmation of a successful call."""

    success: bool = True
