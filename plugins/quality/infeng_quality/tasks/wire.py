"""Values between the process of a program and the process of its tests, as plain data.

A message is eight digits of its length, and JSON. Lists, tuples, sets, mappings and numbers are rebuilt from their
parts; any other object of the program is sent as a handle, its number. Received data is never executed. This file
imports only the standard library, like ``sandboxed.py``.
"""

import json
import os
from collections.abc import Callable
from typing import Any

MOST = 32 << 20  # bytes of a message
DEPTH = 200
SMALL = 1 << 53  # smaller integers are JSON numbers

TAGS: dict[str, Any] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}
TYPES: dict[str, type] = {
    kind.__name__: kind for kind in (*TAGS.values(), dict, bool, int, float, complex, str, bytes, type(None))
}
"""Types that are sent by name instead of as handles."""


class BrokenLineError(Exception):
    """The other end has closed the line or sent an invalid message."""


class Line:
    """Two pipes, one for each direction."""

    def __init__(self, reading: int, writing: int) -> None:
        """Keep the file descriptors."""
        self.reading, self.writing = reading, writing

    def send(self, message: Any) -> None:
        """Write a message; raises BrokenLineError if the other end is closed."""
        data = json.dumps(message).encode()
        data = b"%08d" % len(data) + data
        try:
            while data:
                data = data[os.write(self.writing, data) :]
        except OSError as error:
            raise BrokenLineError(str(error)) from None

    def receive(self) -> Any:
        """Return the next message; raises BrokenLineError."""
        try:
            count = int(self._exactly(8))
            if not 0 < count <= MOST:
                raise BrokenLineError(f"a message of {count} bytes")
            return json.loads(self._exactly(count))
        except (ValueError, RecursionError, OSError) as error:
            raise BrokenLineError(str(error)) from None

    def close(self) -> None:
        """Close both pipes."""
        os.close(self.writing)
        os.close(self.reading)

    def _exactly(self, count: int) -> bytes:
        parts: list[bytes] = []
        while count:
            part = os.read(self.reading, min(count, 1 << 20))
            if not part:
                raise BrokenLineError("the end")
            parts.append(part)
            count -= len(part)
        return b"".join(parts)


def packed(value: Any, handle: Callable[[Any], int], depth: int = 0) -> Any:
    """Return ``value`` as JSON; handle: returns the number of another object. Raises ValueError beyond DEPTH."""
    if depth > DEPTH:
        raise ValueError("nested too deeply")
    if value is None or isinstance(value, bool):
        return value
    for base in (str, int, float, complex, bytes):
        if isinstance(value, base):
            return _plain(base, value)
    if isinstance(value, dict):
        pairs = [[packed(key, handle, depth + 1), packed(item, handle, depth + 1)] for key, item in value.items()]
        return ["dict", pairs]
    if isinstance(value, type) and TYPES.get(value.__name__) is value:
        return ["type", value.__name__]
    for tag, kind in TAGS.items():
        if isinstance(value, kind):
            return [tag, [packed(item, handle, depth + 1) for item in value]]
    return ["handle", handle(value)]


def _plain(base: type, value: Any) -> Any:
    if base is str:
        return str.__str__(value)
    if base is int:
        number = int.__index__(value)
        return number if abs(number) < SMALL else ["int", hex(number)]
    if base is float:
        return ["float", float.hex(value)]
    if base is complex:
        return ["complex", [float.hex(value.real), float.hex(value.imag)]]
    return ["bytes", bytes(value).hex()]


def unpacked(data: Any, held: Callable[[int], Any]) -> Any:
    """Invert ``packed``; held: returns the object of a handle. Raises ValueError, TypeError or LookupError."""
    if data is None or isinstance(data, bool | str | int):
        return data
    if not isinstance(data, list) or len(data) != 2 or not isinstance(data[0], str):
        raise ValueError("no value")
    tag, content = data
    if tag in TAGS:
        return TAGS[tag](unpacked(item, held) for item in content)
    if tag == "dict":
        return {unpacked(key, held): unpacked(item, held) for key, item in content}
    if tag == "type":
        return TYPES[content]
    if tag == "int":
        return int(content, 16)
    if tag == "float":
        return float.fromhex(content)
    if tag == "complex":
        return complex(*map(float.fromhex, content))
    if tag == "bytes":
        return bytes.fromhex(content)
    if tag == "handle" and type(content) is int:
        return held(content)
    raise ValueError(f"no value: {tag[:20]}")
