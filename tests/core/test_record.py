"""Records behave as frozen dataclasses do, to their users and to the module ``dataclasses``."""

from __future__ import annotations

import copy
import dataclasses
import pickle

import pytest

from infeng_core.record import Record, entry, has_entries


class Point(Record):
    x: int
    y: int = 0
    names: dict[str, int] = entry(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "x", int(self.x))


class Named(Point):
    name: str = "p"


class ByName(Record, kw_only=True):
    x: int = 1


@dataclasses.dataclass(frozen=True)
class Plain:
    x: int
    y: int = 0
    names: dict[str, int] = dataclasses.field(default_factory=dict, compare=False, repr=False)


def test_an_object_is_made_of_positions_names_and_defaults():
    assert (Point(1).x, Point(1).y, Point("2", y=3).x, Point(1, 2).y) == (1, 0, 2, 2)
    assert Point(1).names == {} and Point(1).names is not Point(1).names
    assert (Named(1, name="q").name, Named(1).x, ByName().x) == ("q", 1, 1)


@pytest.mark.parametrize(("kind", "args", "given"), [
    (Point, (), {}), (Point, (1, 2, {}, 4), {}), (Point, (1,), {"z": 1}), (Point, (1,), {"x": 1}), (ByName, (1,), {}),
])  # fmt: skip
def test_other_arguments_are_type_errors(kind, args, given):
    with pytest.raises(TypeError, match=kind.__name__):
        kind(*args, **given)


def test_nothing_of_it_changes():
    point = Point(1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        point.x = 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        del point.x
    assert point.x == 1


def test_equal_values_of_one_class_are_equal():
    assert Point(1, 2, {"a": 1}) == Point(1, 2) and hash(Point(1, 2, {"a": 1})) == hash(Point(1, 2))
    assert Point(1) != Point(2) and Point(1) != Named(1) and Point(1) != Plain(1)


def test_it_looks_and_is_copied_as_a_dataclass():
    assert repr(Point(1)) == repr(Plain(1)).replace("Plain", "Point")
    point = Point(1, 2, {"a": 3})
    for other in (copy.copy(point), copy.deepcopy(point), pickle.loads(pickle.dumps(point)), point.replaced()):
        assert (other, other.names) == (point, point.names) and type(other) is Point
    assert point.replaced(y=5) == Point(1, 5)


def test_the_module_dataclasses_takes_it():
    assert [one.name for one in dataclasses.fields(Named)] == ["x", "y", "names", "name"]
    assert [one.name for one in dataclasses.fields(Point(1))] == ["x", "y", "names"]
    assert dataclasses.replace(Named(1), y=4) == Named(1, 4) and type(dataclasses.replace(Named(1))) is Named
    assert dataclasses.asdict(Point(1)) == {"x": 1, "y": 0, "names": {}}
    assert has_entries(Point) and has_entries(Plain) and not has_entries(int) and not has_entries(Point(1))
