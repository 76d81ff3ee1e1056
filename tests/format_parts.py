"""Small random models written with the real safetensors library, and the real trained one where it is at hand."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from convert_parts import load
from goldens.adapted import Adapted
from infeng_convert.api import parse_config
from numpy.typing import NDArray
from safetensors.numpy import save_file

from infeng_core.formats.tensors import LoadedModel
from infeng_core.models.weights import layout
from infeng_core.plug.assembly import load_config

Tensors = dict[str, NDArray[Any]]
ModelMaker = Callable[..., Path]

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 72,
    "intermediate_size": 100,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "head_dim": 10,
    "vocab_size": 50,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def random_tensors(config: Mapping[str, Any], seed: int = 0) -> Tensors:
    """Every tensor that the config calls for, by its Hugging Face name, float32."""
    rng = np.random.default_rng(seed)
    made = layout(parse_config(dict(config), "config.json"))
    shapes = {part.source: (part.rows, spec.k) for spec in made.tensors for part in spec.parts}
    vectors = {part.source: (part.rows,) for spec in made.vectors for part in spec.parts}
    return {name: rng.standard_normal(shape, np.float32) for name, shape in {**shapes, **vectors}.items()}


def write(directory: Path, *, change: Callable[[Tensors], object] | None = None, **config: Any) -> Path:
    """Write a model directory and return it."""
    settings = CONFIG | config
    directory.mkdir(parents=True)
    weights = random_tensors(settings)
    if change is not None:
        change(weights)
    save_file(weights, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(settings))
    (directory / "tokenizer.json").write_text('{"version": "1.0"}')
    return directory


@pytest.fixture(scope="session")
def write_model() -> ModelMaker:
    """Write a model directory at a given place."""
    return write


@pytest.fixture
def make_model(tmp_path: Path) -> ModelMaker:
    """Write a model directory under the test's own: ``name``, ``change`` of the tensors, config changes as keywords."""

    def make(*, name: str = "model", change: Callable[[Tensors], object] | None = None, **config: Any) -> Path:
        return write(tmp_path / name, change=change, **config)

    return make


@pytest.fixture(scope="session")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., LoadedModel]:
    """The models under the goldens' adapters: ``bases(case, format)``."""
    made: dict[tuple[str, str], LoadedModel] = {}
    folder = tmp_path_factory.mktemp("bases")

    def base(case: Adapted, format: str) -> LoadedModel:
        key = case.base.name, format
        if key not in made:
            directory = case.base.write(folder / case.base.name)
            config = load_config(None, overrides={"model.format": format, "model.formats": {"embed": format}})
            made[key] = load(directory, config, progress=False)
        return made[key]

    return base


@pytest.fixture(scope="session")
def stories260k(third_party: Path) -> Path:
    """The trained 260K-parameter model."""
    return third_party / "stories260k"
