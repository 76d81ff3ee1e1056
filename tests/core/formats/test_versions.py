"""What an earlier version wrote loads as it did: same id, same values; what a later one adds moves no id.

``data/1.0`` holds a model and an adapter bound to it (DoRA) as infeng 0.1.0 wrote them, in version 1.0 of both formats.
"""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from convert_parts import load

from infeng_core.errors import AdapterError, ModelError
from infeng_core.formats.adapters.artifact import read_artifact
from infeng_core.formats.adapters.load import load_adapter
from infeng_core.formats.artifacts.manifest import Manifest, read_manifest
from infeng_core.formats.quant import builtin_format
from infeng_core.models.config import ModelConfig
from infeng_core.models.rope_config import RopeConfig
from infeng_core.plug.assembly import load_config
from infeng_core.plug.manager import Plugins

WRITTEN = Path(__file__).parent / "data" / "1.0"
ID = "7fdd26dfec700e0ca37a3058c14ba0406ae9e165164e2d4f6a6e1d9e6225664c"
ADAPTER_ID = "c7b7d2f134581d01d8fbf21ad5f7366021b4de69ed5a87052a2b3bf0f4703a46"


@pytest.mark.parametrize("mode", ["copy", "mmap"])
def test_a_directory_of_version_1_0_loads_with_its_id_and_values(mode: str) -> None:
    model = load(WRITTEN / "model", load_config(overrides={"model.load": mode}))
    assert model.id == ID and model.config.family == "qwen2" and model.config.rope.theta == 500000.0
    assert set(model.formats_used.values()) == {"int8-row", "int4-g64", "int4-g32", "bf16", "f32"}
    values = np.random.default_rng(7)  # as the fixture was made: embed first, head last of the matrices
    embed = values.standard_normal((16, 8)).astype(np.float32)
    np.testing.assert_allclose(model.matrix("model.embed_tokens.weight"), embed, atol=0.02)
    for rows, k in ((8, 8), (4, 8), (4, 8), (8, 8), (16, 8), (16, 8), (8, 16)):
        values.standard_normal((rows, k))
    head = values.standard_normal((16, 8)).astype(np.float32)
    np.testing.assert_array_equal(model.matrix("lm_head.weight"), head)


def test_an_adapter_of_version_1_0_that_is_bound_to_its_base_still_fits_it() -> None:
    model, plugins = load(WRITTEN / "model", load_config()), Plugins.discover()
    adapter = load_adapter(WRITTEN / "adapter", model, "int8", providers=plugins)
    assert read_artifact(WRITTEN / "adapter").id == ADAPTER_ID
    assert adapter.base == ID and adapter.tensors["layers.0.qkv_proj"].parts[0].row_scale is not None
    plugins.manifests = [found for found in plugins.manifests if found.name != "peft"]
    with pytest.raises(AdapterError, match=r"is in version 1 of its format: .*; or install the wheel infeng-peft$"):
        load_adapter(WRITTEN / "adapter", model, "int8", providers=plugins)


def test_a_model_is_written_with_the_fields_of_version_1_0_and_needed_newer_ones() -> None:
    model = read_manifest(WRITTEN / "model", builtin_format).model
    document = yaml.safe_load((WRITTEN / "model" / "manifest.yaml").read_text())["model"]
    assert model.to_dict().keys() == document.keys() and model.to_dict()["rope"].keys() == document["rope"].keys()
    more = dataclasses.replace(model, windows=(0, 8), rope=dataclasses.replace(model.rope, partial=0.5))
    assert more.to_dict().keys() - document.keys() == {"windows"}
    assert more.to_dict()["rope"].keys() - document["rope"].keys() == {"partial"}


def test_a_directory_of_another_revision_of_the_numerics_is_refused_by_its_number(tmp_path: Path) -> None:
    shutil.copytree(WRITTEN / "model", tmp_path / "model")
    path = tmp_path / "model" / "manifest.yaml"
    manifest = dataclasses.replace(read_manifest(path.parent, builtin_format), numerics=2)
    assert manifest.id != ID, "other bytes are another model's"
    path.write_text(path.read_text() + "numerics: 2\n", encoding="utf-8")
    with pytest.raises(ModelError, match="revision 2, this engine computes by revision 1"):
        read_manifest(path.parent, builtin_format)
    path.write_text(path.read_text().replace("numerics: 2", "numerics: 1"), encoding="utf-8")
    assert read_manifest(path.parent, builtin_format).id == ID


Later: Any = dataclasses.make_dataclass(
    "Later",
    [("window", int, dataclasses.field(default=0)), ("caps", tuple[float, ...], dataclasses.field(default=()))],
    bases=(ModelConfig,),
    frozen=True,
)
LaterRope: Any = dataclasses.make_dataclass(
    "LaterRope", [("beta", float, dataclasses.field(default=32.0))], bases=(RopeConfig,), frozen=True
)


def test_a_new_field_at_its_default_is_not_written_and_changes_no_id() -> None:
    manifest = read_manifest(WRITTEN / "model", builtin_format)

    def with_model(**changes: Any) -> Manifest:
        fields = vars(manifest.model) | {"rope": LaterRope(**vars(manifest.model.rope))} | changes
        return dataclasses.replace(manifest, model=Later(**fields))

    same = with_model()
    assert same.model.to_dict() == manifest.model.to_dict() and same.id == manifest.id == ID
    others = [with_model(window=64), with_model(caps=(30.0,))]
    others.append(with_model(rope=LaterRope(**vars(manifest.model.rope), beta=16.0)))
    assert len({ID, *(other.id for other in others)}) == 4
    assert others[0].model.to_dict() == manifest.model.to_dict() | {"window": 64}
    assert others[1].model.to_dict()["caps"] == [30.0] and others[2].model.to_dict()["rope"]["beta"] == 16.0


@pytest.mark.parametrize("key", ["model", "rope"])
def test_a_field_that_this_version_does_not_know_is_refused_with_the_way_out(tmp_path: Path, key: str) -> None:
    directory = Path(shutil.copytree(WRITTEN / "model", tmp_path / "model"))
    path = directory / "manifest.yaml"
    document = yaml.safe_load(path.read_text())
    (document["model"] if key == "model" else document["model"]["rope"])["window"] = 64
    path.write_text(yaml.safe_dump(document | {"infeng_weights": "1.7"}))
    with pytest.raises(ModelError, match="is not a known key: update infeng, or convert the model again with"):
        load(directory, load_config())


@pytest.mark.parametrize(
    ("version", "remedy"), [("2.0", "update infeng"), ("0.9", "infeng convert SOURCE DEST --force")]
)
def test_another_major_version_gives_the_exact_remedy(tmp_path: Path, version: str, remedy: str) -> None:
    directory = Path(shutil.copytree(WRITTEN / "model", tmp_path / "model"))
    path = directory / "manifest.yaml"
    path.write_text(path.read_text().replace("infeng_weights: '1.0'", f"infeng_weights: '{version}'"))
    with pytest.raises(ModelError, match=f"is {version}, this version of infeng reads 1.x: .*{remedy}"):
        load(directory, load_config())
