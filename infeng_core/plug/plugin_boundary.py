"""Checks that an object of a plugin fulfils the Protocol or dataclass of its hook: any other result is a PluginError
that names the plugin. The core's own parts are not wrapped, so they pay nothing for this."""

from __future__ import annotations

import copy
import types
from collections import abc
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, partial
from threading import get_ident
from typing import Any, Literal, NoReturn, Protocol, Union, get_args, get_origin, get_type_hints

from infeng_core.errors import InfengError, PluginError, printable
from infeng_core.record import Record, has_entries

REMEDY = "reinstall the plugin or ask its author for a repair"


class Owner(Record):
    """The plugin and part that an object belongs to, for messages: ``plugin shout``, ``tokenizer loud``."""

    plugin: str
    part: str
    raises: tuple[type[BaseException], ...] = ()  # errors that its methods may raise besides those of ``PASSING``

    def fail(self, why: str) -> NoReturn:
        """Raise the PluginError."""
        raise PluginError(f"plugin {self.plugin}", f"{self.part}: {why}", REMEDY)

    def blame(self, what: str, error: BaseException) -> NoReturn:
        """Raise the PluginError for an exception of the plugin."""
        why = f"{self.part}: {what} raised {type(error).__name__}: {error}"
        raise PluginError(f"plugin {self.plugin}", why, REMEDY) from error


INSIDE: dict[int, tuple[Owner, str]] = {}
"""The plugin method in which each thread is now, to report where a step hangs: "order"."""

PLAIN = frozenset({bool, bytes, float, int, str})
"""Types whose values are right by their type alone: the ids of a prompt and the text of a token are, thousands of times
a second."""


def hold(value: Any, face: type, owner: Owner) -> Any:
    """Return ``value`` with its methods checked; raises PluginError for what is no ``face``."""
    if not has_entries(face):
        return Held(value, face, owner)
    if text := wrong(value, face):
        owner.fail(f"it {text}")
    return _overriding(value, face, owner)


def optional(part: Any, face: type) -> Any | None:
    """Return a part by a further interface, with checked results; None if it has no member of the interface.

    Raises PluginError for a plugin's part that has some of the members and lacks others.
    """
    inner = vars(part)["_inner"] if type(part) is Held else part
    if members(face).keys().isdisjoint(dir(inner)):
        return None
    return Held(inner, face, vars(part)["_owner"]) if type(part) is Held else part


def _overriding(value: Any, face: type, owner: Owner) -> Any:
    """Return a copy of an instance of a dataclass, or of its subclass, whose own methods are checked."""
    from inspect import getattr_static  # takes as long to import as all of this package

    kind, watched = type(value), {}
    for name, (is_method, owed) in members(face).items():
        own = getattr_static(kind, name, None)
        if own is getattr_static(face, name, None):
            continue  # the core's own method
        if is_method and not callable(getattr(value, name)):
            owner.fail(f"{name} is {_show(getattr(value, name))}, not a method")
        if is_method:
            watched[name] = _watched_method(owner, face.__name__, name, getattr(kind, name), owed)
        elif isinstance(own, property) and own.fget is not None:
            watched[name] = property(_watched_method(owner, face.__name__, name, own.fget, owed))
    if not watched:
        return value
    made = copy.copy(value)
    # The copy keeps the class for isinstance(); a dataclass compares by its class, and equal formats are one object.
    object.__setattr__(made, "__class__", type(kind.__name__, (kind,), {"__module__": kind.__module__, **watched}))
    return made


def _watched_method(owner: Owner, face: str, name: str, method: Any, owed: Any) -> Any:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return _call(owner, name, partial(method, self), owed, LAWS.get(f"{face}.{name}"), *args, **kwargs)

    return call


def wrong(value: Any, owed: Any) -> str:
    """Return how ``value`` violates the annotation ``owed``, such as "is 3, not a list", or "".

    Containers are checked deeply; objects in them are checked at their use.
    """
    owed = _spelled_out(owed)
    origin, inner = get_origin(owed) or owed, get_args(owed)
    if origin is Any or _is_protocol(origin):
        return ""
    if origin in (Union, types.UnionType):
        found: list[str] = []
        for one in inner:  # no further than to the one that fits: a text about the others shows all of an array
            found.append(wrong(value, one))
            if not found[-1]:
                return ""
        return found[0]
    if origin is Literal:
        return "" if value in inner else f"is {_show(value)}, not one of {', '.join(map(str, inner))}"
    if origin is abc.Callable:
        return "" if callable(value) else f"is {_show(value)}, which cannot be called"
    if origin is int and not isinstance(value, bool) and hasattr(value, "__index__"):
        return ""
    if origin in (list, abc.Sequence) and isinstance(value, abc.Sequence) and not isinstance(value, str):
        if inner[0] in PLAIN and {inner[0]}.issuperset(map(type, value)):
            return ""
        return next((f"has an item that {text}" for item in value if (text := wrong(item, inner[0]))), "")
    if origin is tuple and isinstance(value, tuple) and inner[1:] == (...,):
        return next((f"has an item that {text}" for item in value if (text := wrong(item, inner[0]))), "")
    if origin in (dict, abc.Mapping) and isinstance(value, Mapping):
        pairs = ((name, wrong(name, inner[0]) or wrong(item, inner[1])) for name, item in value.items())
        return next((f"has an entry {_show(name)} that {text}" for name, text in pairs if text), "")
    if has_entries(origin) and isinstance(value, origin):
        fields = ((name, wrong(getattr(value, name), hint)) for name, hint in _hints(origin).items())
        return next((f"has a {name} that {text}" for name, text in fields if text), "")
    if origin not in (int, abc.Sequence) and isinstance(value, origin):
        kind = get_args(inner[1]) if len(inner) == 2 and hasattr(value, "dtype") else ()
        is_other = bool(kind) and kind[0] is not Any and value.dtype != kind[0]
        return f"is of {value.dtype}, not {kind[0].__name__}" if is_other else ""
    return f"is {_show(value)}, not {getattr(origin, '__name__', origin)}"


def _spelled_out(hint: Any) -> Any:
    """Return an annotation in place of its alias: from Python 3.12 on, ``NDArray[T]`` of NumPy is one."""
    while hasattr(alias := get_origin(hint) or hint, "__value__"):
        inner = get_args(hint)
        hint = alias.__value__[inner] if inner else alias.__value__
    return hint


class Held:
    """Wraps an object of a plugin: passes on calls of its interface's methods and checks their results."""

    def __init__(self, inner: Any, face: type, owner: Owner) -> None:
        """Raises PluginError where ``inner`` lacks a member of ``face``."""
        vars(self).update(_inner=inner, _face=face, _owner=owner, _looked_at={})
        for name, (is_method, _) in members(face).items():
            value = getattr(self, name)
            if is_method and not callable(value):
                owner.fail(f"{name} is {_show(value)}, not a method")

    @property
    def __class__(self) -> type:
        """Return the wrapped object's class, so that isinstance() works."""
        return type(self._inner)

    @__class__.setter
    def __class__(self, kind: type) -> None:
        raise TypeError("the class of a plugin's object cannot be set")

    def __getattr__(self, name: str) -> Any:
        """Return the object's own attribute; methods of its interface are checked."""
        owner, known = self._owner, members(self._face)
        try:
            value = getattr(self._inner, name)
        except AttributeError as error:
            if name not in known:
                raise
            owner.fail(f"it has no {name}: {error}")
        except Exception as error:
            owner.blame(name, error)
        # Optional methods, such as ``Backend.block_windows``, are called through here as well.
        is_method, owed = known[name] if name in known else (_is_routine(value), None)
        if is_method and callable(value):
            law = LAWS.get(f"{self._face.__name__}.{name}")
            vars(self)[name] = partial(_call, owner, name, value, owed, law)
            return vars(self)[name]
        if not is_method and name in known and self._looked_at.get(name, _END) is not value:
            if text := wrong(value, owed):
                owner.fail(f"{name} {text}")
            self._looked_at[name] = value
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        """Set the object's own attribute, in place of a method that was asked for before."""
        vars(self).pop(name, None)
        setattr(self._inner, name, value)


PASSING: tuple[type[BaseException], ...] = (InfengError, KeyboardInterrupt, GeneratorExit)


def _call(owner: Owner, name: str, method: Any, owed: Any, law: Law | None, *args: Any, **kwargs: Any) -> Any:
    result = _inside(owner, name, method, *args, **kwargs)
    is_plain = type(result) is owed and owed in PLAIN
    if not is_plain and owed is not None and (text := wrong(result, owed)):
        owner.fail(f"the result of {name}() {text}")
    if law is not None and (text := law(args, result)):
        owner.fail(f"{name}() {text}")
    if is_plain:
        return result
    if (get_origin(owed) or owed) in (abc.Iterable, abc.Iterator) and type(result) not in (list, tuple, set, dict):
        return _steps(owner, name, result)
    if not _is_protocol(owed):
        return result
    held = Held(result, owed, owner)
    return held if any(is_method for is_method, _ in members(owed).values()) else result


def _inside(owner: Owner, name: str, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a plugin, recording meanwhile that this thread is inside it."""
    thread = get_ident()
    outer = INSIDE.get(thread)
    INSIDE[thread] = owner, name
    try:
        return method(*args, **kwargs)
    except (*PASSING, *owner.raises):
        raise
    except BaseException as error:  # panics of libraries in other languages are not Exceptions
        owner.blame(f"{name}()", error)
    finally:
        if outer is None:
            INSIDE.pop(thread, None)
        else:
            INSIDE[thread] = outer


def inside(thread: int | None) -> str:
    """Return the plugin's method that a thread is in, such as "plugin odd: scheduler odd: order()"; "" for none."""
    found = None if thread is None else INSIDE.get(thread)
    return "" if found is None else f"plugin {found[0].plugin}: {found[0].part}: {found[1]}()"


_END = object()


def _steps(owner: Owner, name: str, made: Iterable[Any]) -> Iterator[Any]:
    """Iterate over the items that a plugin's method yields; each step may raise."""
    iterator = _inside(owner, name, iter, made)
    while (item := _inside(owner, name, next, iterator, _END)) is not _END:
        yield item


Law = Callable[[tuple[Any, ...], Any], str]


def _as_many(args: tuple[Any, ...], ids: Any) -> str:
    return "" if len(ids) == len(args[0]) else f"returned ids of {len(ids)} texts for {len(args[0])}"


def _has_logits(args: tuple[Any, ...], logits: Any) -> str:
    rows = len(args[0].sample_rows)
    return "" if logits.ndim == 2 and len(logits) == rows else f"returned {logits.shape} for {rows} sampled rows"


def _is_short(args: tuple[Any, ...], draft: Any) -> str:
    return "" if len(draft) <= args[0] else f"returned {len(draft)} tokens where at most {args[0]} were asked for"


def _has_panels(args: tuple[Any, ...], size: int) -> str:
    return "" if size > 0 and size % 64 == 0 else f"returned {size}, which is no multiple of 64 above 0"


LAWS: Mapping[str, Law] = {
    "QuantFormat.panel_bytes": _has_panels,
    "Drafter.draft": _is_short,
    "Tokenizer.encode": _as_many,
    "Executable.run": _has_logits,
}
"""Checks of a method beyond its annotation: a function of its arguments and its result that returns the fault, or
""."""


@cache
def members(face: type) -> dict[str, tuple[bool, Any]]:
    """Return the members of a Protocol: whether each is a method, and the annotation of its result."""
    found: dict[str, tuple[bool, Any]] = {}
    for kind in reversed([base for base in face.__mro__ if base is face or _is_protocol(base)]):
        for name, value in vars(kind).items():
            function = value.fget if isinstance(value, property) else value
            if isinstance(function, types.FunctionType) and not name.startswith("_"):
                found[name] = (function is value, _result(function))
        found |= {name: (False, owed) for name, owed in _hints(kind).items()}
    return found


@cache
def _hints(kind: type) -> dict[str, Any]:
    try:
        return get_type_hints(kind) if "__annotations__" in vars(kind) else {}
    except NameError:  # as below
        return {}


def _result(function: types.FunctionType) -> Any:
    owed = function.__annotations__.get("return", Any)
    try:
        return eval(owed, function.__globals__) if isinstance(owed, str) else owed
    except NameError:  # a name that exists only for type checkers
        return Any


def _is_routine(value: object) -> bool:
    from inspect import isroutine

    return isroutine(value)


def _is_protocol(owed: Any) -> bool:
    return Protocol in getattr(owed, "__bases__", ())


def _show(value: Any) -> str:
    try:
        return printable(repr(value), 80)
    except Exception:
        return f"a {type(value).__name__}"
