"""The recommended sampling parameters in a model's generation_config.json."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from infeng_core.errors import RequestError
from infeng_core.files import model_file, read_json
from infeng_core.log import get_logger
from infeng_core.requests.request import SamplingParams

FILE = "generation_config.json"
TAKEN = ("temperature", "top_k", "top_p", "min_p", "typical_p", "repetition_penalty")
"""The keys with equal meaning there and in SamplingParams."""

_MOST_BYTES = 4 << 20


def recommended(directory: Path) -> Mapping[str, Any]:
    """Return the parameters that the file in ``directory`` sets, by their names in SamplingParams.

    ``do_sample: false`` is temperature 0, whatever temperature stands beside it. An invalid value is left out with a
    warning. Raises ModelError for a file that cannot be read.
    """
    path = model_file(directory, FILE)
    if not path.exists():
        return MappingProxyType({})
    data = read_json(path, limit=_MOST_BYTES)
    given = {name: data[name] for name in TAKEN if data.get(name) is not None} if isinstance(data, dict) else {}
    if isinstance(data, dict) and data.get("do_sample") is False:
        given["temperature"] = 0.0
    return MappingProxyType({name: value for name, value in given.items() if _is_possible(path, name, value)})


def _is_possible(path: Path, name: str, value: Any) -> bool:
    try:
        SamplingParams(**{name: value})
    except RequestError as error:
        get_logger(__name__).warning("a recommended parameter is ignored", file=str(path), reason=str(error))
        return False
    return True
