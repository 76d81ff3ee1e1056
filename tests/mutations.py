"""Bodies of calls with one thing wrong, drawn by a seed, and where it is."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

JUNK: list[Any] = [
    None, True, False, 0, -1, 1, 0.5, -0.5, 1e308, -1e308, 2**31, 2**63, 2**64, -(2**63) - 1, 10**30, 10**400, "", " ",
    "x", "\x00", "\u202e", "\U0001f642" * 3, "a" * 3000, [], {}, [[]], [{}], [None], [1, "a"], [[1], "a"], {"": None},
    {"type": None}, {"type": "x"}, {"a": {"b": {"c": []}}}, [1e308], ["\x00"], [-1], [2**40], {"1": "2"}, {"x": 1},
]  # fmt: skip
RAW = ["NaN", "Infinity", "-Infinity", "1e999", "-0", "1" * 5000, '"\\ud800"', '"\\udc00\\ud800"', "01", "+1",
       "tru", "'x'", '"\\x41"', '{"a":1,"a":2}', "[" * 600 + "]" * 600, '"\xff"', "", "//x", "{,}", "[1,]"]  # fmt: skip
"""Values as they are written, some of which are no JSON."""
HOLE = "\u2603hole\u2603"

Place = tuple[str | int, ...]


def places(value: Any, path: Place = ()) -> Iterator[Place]:
    """Yield the path of each part of a body."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in items:
        yield (*path, key)
        yield from places(one, (*path, key))


def spelled(path: Place) -> str:
    """Return a path as errors name it."""
    text = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path)
    return text.removeprefix(".")


def mutated(body: dict[str, Any], chance: random.Random) -> tuple[bytes, str]:
    """Return a body with one part replaced, left out, renamed or doubled, and the path of that part."""
    found = copy.deepcopy(body)
    path = chance.choice(list(places(found)))
    parent: Any = found
    for key in path[:-1]:
        parent = parent[key]
    key, kind = path[-1], chance.random()
    raw = ""
    if kind < 0.6:
        parent[key] = chance.choice(JUNK)
    elif kind < 0.8:
        parent[key], raw = HOLE, chance.choice(RAW)
    elif kind < 0.9 or isinstance(parent, list):
        del parent[key]
    else:
        name = chance.choice([f"{key}s", str(key).upper(), "__proto__", "a b", "\u00e9", ""])
        parent[name] = parent.pop(key)
        path = (*path[:-1], name)
    text = json.dumps(found)
    return text.replace(json.dumps(HOLE), raw).encode("latin-1" if raw == '"\xff"' else "utf-8"), spelled(path)
