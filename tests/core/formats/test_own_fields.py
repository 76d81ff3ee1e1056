"""Fields of a model that only its family knows: read with their types and bounds, written, hashed, or refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from infeng_core.errors import ModelError
from infeng_core.formats.adapters.artifact import shapes_of
from infeng_core.formats.artifacts.manifest import read_manifest
from infeng_core.formats.quant import builtin_format
from infeng_core.models import families
from infeng_core.models.config import ModelConfig
from infeng_core.models.typed_fields import Fields

WRITTEN = Path(__file__).parent / "data" / "1.0" / "model"
GIVEN = {"is_odd": True, "slopes": [0.5, 0.25], "turns": 3, "kind": "square"}


def own(fields: Fields) -> dict[str, Any]:
    """Read the fields of the family ``odd``."""
    return {
        "turns": fields.integer("turns", 0, 8, 1),
        "is_odd": fields.flag("is_odd", False),
        "kind": fields.text("kind", "round"),
        "slopes": fields.numbers("slopes", 0.0, 1.0) if fields.has("slopes") else (),
    }


@pytest.fixture(autouse=True)
def odd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(families, "added", {"odd": SimpleNamespace(FAMILY="odd", ARCHITECTURES=(), own=own)})


def config(given: object = None, **changes: Any) -> ModelConfig:
    plain = {**read_manifest(WRITTEN, builtin_format).model.to_dict(), "family": "odd", **changes}
    return ModelConfig.from_dict(plain if given is None else {**plain, "own": given}, "model.json")


def test_a_family_gets_what_it_reads_and_defaults_for_the_rest() -> None:
    assert config().own == {"turns": 1, "is_odd": False, "kind": "round", "slopes": ()}
    found = config(GIVEN).own
    assert found == {"turns": 3, "is_odd": True, "kind": "square", "slopes": (0.5, 0.25)}
    assert list(found) == ["is_odd", "kind", "slopes", "turns"]
    with pytest.raises(TypeError):
        found["turns"] = 4  # type: ignore[index]


def test_only_what_differs_from_the_defaults_is_written() -> None:
    made = config({**GIVEN, "turns": 1})
    assert made.to_dict()["own"] == {"is_odd": True, "slopes": [0.5, 0.25], "kind": "square"}
    assert ModelConfig.from_dict(made.to_dict(), "model.json") == made
    assert "own" not in config({"turns": 1}).to_dict() and config({"turns": 1}) == config()


def test_own_fields_identify_a_model_and_the_bases_of_an_adapter() -> None:
    manifest = read_manifest(WRITTEN, builtin_format)
    ids = {dataclasses.replace(manifest, model=config(given)).id for given in (None, {}, {"turns": 1}, {"turns": 2})}
    assert len(ids) == 2
    assert shapes_of(config()) == shapes_of(config({})) != shapes_of(config({"turns": 2}))


def test_equal_fields_have_equal_hashes() -> None:
    assert hash(config(GIVEN)) == hash(config(dict(reversed(GIVEN.items()))))
    assert config(GIVEN) != config({**GIVEN, "turns": 4})


@pytest.mark.parametrize(
    ("family", "given", "words"),
    [
        ("odd", {"hue": 1}, "model.own.'hue' is not a known key"),
        ("qwen2", {"turns": 1}, "model.own.'turns' is not a known key"),
        ("odd", {"turns": 9}, "model.own.turns is 9, it must be from 0 to 8"),
        ("odd", {"turns": True}, "model.own.turns is True, it must be a whole number"),
        ("odd", {"is_odd": 1}, "model.own.is_odd is 1, it must be true or false"),
        ("odd", {"slopes": [float("nan")]}, "is nan, it must be from 0 to 1"),
        ("odd", [], "model.own is \\[\\], it must be a mapping"),
        ("odd", {"kind": 3}, "model.own.kind is 3, it must be a string"),
    ],
)
def test_what_a_family_does_not_read_is_refused(family: str, given: object, words: str) -> None:
    with pytest.raises(ModelError, match=words) as caught:
        config(given, family=family)
    assert str(caught.value).startswith("model.json: ")


@pytest.mark.parametrize("value", [None, [1], {"a": 1}, float("inf"), (1, [2]), object()])
def test_a_family_may_return_plain_values_only(value: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(families.added["odd"], "own", lambda fields: {"turns": value})
    with pytest.raises(ModelError, match=r"family odd: its own fields are \{'turns': .*\}: they must be plain"):
        config()


@pytest.mark.parametrize("found", [None, ["turns"], {1: 2}, {"a": 1, None: 2}])
def test_a_family_must_return_its_fields_by_name(found: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(families.added["odd"], "own", lambda fields: found)
    with pytest.raises(ModelError, match=r"family odd: its own fields are .*: they must be plain values by their"):
        config()


def test_a_converter_may_give_a_field_as_a_plain_mapping() -> None:
    made = dataclasses.replace(config(), own={"turns": 5})
    assert made.own["turns"] == 5 and made.own["kind"] == "round"
    with pytest.raises(ModelError, match=r"family odd: model.own.'hue' is not a known key"):
        dataclasses.replace(config(), own={"hue": 5})
