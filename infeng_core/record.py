"""Immutable classes of named values, as ``@dataclass(frozen=True)`` makes them, without generated code.

A dataclass writes and compiles six functions for each class, which takes about half a millisecond; importing the engine
makes fifty classes. A ``Record`` interprets its entries instead, so each object takes a microsecond longer to make.
Classes whose objects are made for every token remain dataclasses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self, dataclass_transform

if TYPE_CHECKING:
    from dataclasses import Field

_NO_VALUES: Mapping[str, Any] = MappingProxyType({})
_NO_NAMES: tuple[str, ...] = ()

REQUIRED: Any = object()
"""The default of an entry that every object has to be given."""


class Entry:
    """One entry of a record: its default, and whether comparisons and ``repr`` look at it."""

    __slots__ = ("compare", "default", "default_factory", "metadata", "repr")

    def __init__(
        self,
        default: Any = REQUIRED,
        default_factory: Callable[[], Any] | None = None,
        *,
        compare: bool = True,
        repr: bool = True,
        metadata: Mapping[str, Any] = _NO_VALUES,
    ) -> None:
        """Take what ``dataclasses.field`` takes."""
        self.default = default
        self.default_factory = default_factory
        self.compare = compare
        self.repr = repr
        self.metadata = metadata

    def made_default(self) -> Any:
        """Return the default, or ``REQUIRED``."""
        return self.default if self.default_factory is None else self.default_factory()


def entry(
    *,
    default: Any = REQUIRED,
    default_factory: Callable[[], Any] | None = None,
    compare: bool = True,
    repr: bool = True,
    metadata: Mapping[str, Any] = _NO_VALUES,
) -> Any:
    """Declare an entry in the body of a record, as ``dataclasses.field`` does in that of a dataclass."""
    return Entry(default, default_factory, compare=compare, repr=repr, metadata=metadata)


_NO_ENTRIES: Mapping[str, Entry] = MappingProxyType({})


class _OfDataclass:
    """An attribute that the module ``dataclasses`` reads, made with a real dataclass when it is first read."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, record: object, kind: type[Record]) -> Any:
        from dataclasses import field, make_dataclass

        def as_field(one: Entry) -> Any:
            given: dict[str, Any] = {} if one.default is REQUIRED else {"default": one.default}
            if one.default_factory is not None:
                given = {"default_factory": one.default_factory}
            return field(**given, compare=one.compare, repr=one.repr, kw_only=kind._is_kw_only, metadata=one.metadata)

        fields = [(name, kind._kinds.get(name, Any), as_field(one)) for name, one in kind._entries.items()]
        made: Any = make_dataclass(kind.__name__, fields, frozen=True)
        kind.__dataclass_fields__ = made.__dataclass_fields__
        kind.__dataclass_params__ = made.__dataclass_params__
        return getattr(made, self.name)


@dataclass_transform(frozen_default=True, field_specifiers=(entry,))
class Record:
    """Base of immutable classes that are declared as dataclasses are; ``dataclasses.replace`` and ``fields`` take them.

    A subclass may define ``__post_init__``, which is called once every entry has its value.
    """

    # Without annotations, which would be entries of every record to ``typing.get_type_hints``.
    _entries, _kinds, _defaults, _compared, _is_kw_only = _NO_ENTRIES, _NO_VALUES, _NO_VALUES, _NO_NAMES, False

    if TYPE_CHECKING:
        __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
        __dataclass_params__: ClassVar[Any]

    def __init_subclass__(cls, *, kw_only: bool = False, **more: Any) -> None:
        """Collect the entries of the class behind those of its bases."""
        super().__init_subclass__(**more)
        kinds = {name: kind for name, kind in cls.__annotations__.items() if "ClassVar" not in str(kind)}
        own = {name: _declared(cls, name) for name in kinds}
        cls._entries = MappingProxyType({**cls._entries, **own})
        cls._kinds = MappingProxyType({**cls._kinds, **kinds})
        cls._is_kw_only = kw_only
        cls._defaults = {name: one.default for name, one in cls._entries.items()}
        cls._compared = tuple(name for name, one in cls._entries.items() if one.compare)
        for name in ("__dataclass_fields__", "__dataclass_params__"):
            setattr(cls, name, _OfDataclass(name))

    def __init__(self, *args: Any, **given: Any) -> None:
        """Take the entries in their order, or by name."""
        kind = type(self)
        values = {**kind._defaults, **dict(zip(kind._defaults, args, strict=False)), **given}
        if args or len(values) != len(kind._defaults):
            _require_fitting(kind, args, given)
        for name, value in values.items():
            if value is REQUIRED:
                values[name] = _default(kind, name)
        vars(self).update(values)
        if post := getattr(self, "__post_init__", None):
            post()

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        """Raise FrozenInstanceError."""
        from dataclasses import FrozenInstanceError

        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> NoReturn:
        """Raise FrozenInstanceError."""
        from dataclasses import FrozenInstanceError

        raise FrozenInstanceError(f"cannot delete field {name!r}")

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if other.__class__ is not self.__class__:
            return NotImplemented
        return self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name, one in self._entries.items() if one.repr)
        return f"{type(self).__qualname__}({shown})"

    def replaced(self, **changes: Any) -> Self:
        """Return a copy with other values, as ``dataclasses.replace`` does."""
        return type(self)(**{name: getattr(self, name) for name in self._entries} | changes)

    def _key(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in self._compared)


def has_entries(kind: Any) -> bool:
    """Return whether a class is a record or a dataclass."""
    return isinstance(kind, type) and hasattr(kind, "__dataclass_fields__")


def entries(kind: type[Record]) -> Mapping[str, Entry]:
    """Return the entries of a record by their names, in their order."""
    return kind._entries


def _declared(kind: type[Record], name: str) -> Entry:
    """Return the entry that the body of a class declares; its default stays an attribute of the class."""
    found = vars(kind).get(name, REQUIRED)
    made = found if isinstance(found, Entry) else Entry(found)
    if made.default is not REQUIRED:
        setattr(kind, name, made.default)
    elif made is found:
        delattr(kind, name)
    return made


def _default(kind: type[Record], name: str) -> Any:
    value = kind._entries[name].made_default()
    if value is REQUIRED:
        raise TypeError(f"{kind.__qualname__}() lacks a value of {name!r}")
    return value


def _require_fitting(kind: type[Record], args: tuple[Any, ...], given: Mapping[str, Any]) -> None:
    """Raise TypeError for arguments that are too many, unknown or given twice."""
    most = 0 if kind._is_kw_only else len(kind._entries)
    if len(args) > most:
        raise TypeError(f"{kind.__qualname__}() takes {most} positional arguments, not {len(args)}")
    if unknown := next((name for name in given if name not in kind._entries), None):
        raise TypeError(f"{kind.__qualname__}() got an unexpected keyword argument {unknown!r}")
    taken = set(list(kind._entries)[: len(args)])
    if twice := next((name for name in given if name in taken), None):
        raise TypeError(f"{kind.__qualname__}() got multiple values for argument {twice!r}")
