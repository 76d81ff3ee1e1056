"""YAML files with the line of every value kept, so that an error can name the place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from infeng_core.errors import ManifestError

MAX_NODES = 20_000  # a manifest has tens of values; this stops an alias bomb, not a reader

Key = tuple[str, ...]

# libyaml where PyYAML was built with it: reading is a tenth of the time, and every command reads every plugin.yaml.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True)
class Document:
    """A parsed file: plain data, and the 1-based line of each key path."""

    path: Path
    data: Mapping[str, object]
    lines: Mapping[Key, int] = field(repr=False)

    def place(self, key: Key) -> str:
        """Return ``"engine.yaml:7: kernels.order"``, the start of every message about ``key``."""
        line = next((self.lines[key[:n]] for n in range(len(key), -1, -1) if key[:n] in self.lines), 1)
        return f"{self.path}:{line}: {'.'.join(key)}" if key else f"{self.path}:{line}"


def read(path: Path) -> Document:
    """Read ``path`` as one mapping.

    Raises ManifestError for a missing or unreadable file, a syntax error, a duplicate key, or a top level that is
    not a mapping.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ManifestError(str(path), "no such file", "check the path") from None
    except UnicodeDecodeError as error:
        raise ManifestError(str(path), f"not UTF-8 text (byte {error.start})", "save the file as UTF-8") from None
    except OSError as error:
        raise ManifestError(str(path), error.strerror or str(error)) from None
    return parse(text, path)


def parse(text: str, path: Path) -> Document:
    """Parse ``text``; ``path`` is only named in errors."""
    try:
        loader = _Loader(text)
        try:
            root = loader.get_single_node()
            reader = _Reader(loader, path)
            data = {} if root is None else reader.value(root, ())
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        raise ManifestError(f"{path}:{line}", error.problem or "not valid YAML", "fix the syntax") from None
    except (yaml.YAMLError, ValueError) as error:
        raise ManifestError(str(path), str(error).splitlines()[0], "fix the syntax") from None
    if not isinstance(data, dict):
        raise ManifestError(f"{path}:1", f"expected keys and values, found {type_name(data)}")
    return Document(path, data, reader.lines if root is not None else {})


class _Reader:
    """Turns composed nodes into plain data and remembers where each one began."""

    def __init__(self, loader: Any, path: Path) -> None:
        self.loader = loader
        self.path = path
        self.lines: dict[Key, int] = {}
        self.count = 0

    def value(self, node: yaml.Node, key: Key) -> object:
        line = node.start_mark.line + 1
        self.lines.setdefault(key, line)
        self.count += 1
        if self.count > MAX_NODES or len(key) > 16:
            raise ManifestError(f"{self.path}:{line}", "too many or too deeply nested values")
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, key)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, (*key, str(index))) for index, item in enumerate(node.value)]
        result: object = self.loader.construct_object(node)
        return result

    def mapping(self, node: yaml.MappingNode, key: Key) -> dict[str, object]:
        result: dict[str, object] = {}
        for name_node, value_node in node.value:
            line = name_node.start_mark.line + 1
            if not isinstance(name_node, yaml.ScalarNode):
                raise ManifestError(f"{self.path}:{line}", "a key must be a plain word")
            name = str(name_node.value)
            if name in result:
                raise ManifestError(
                    f"{self.path}:{line}: {'.'.join((*key, name))}", "given twice", "keep one of the two"
                )
            self.lines[(*key, name)] = line
            result[name] = self.value(value_node, (*key, name))
        return result


def type_name(value: object) -> str:
    """Return what a person calls the type of a YAML value."""
    names = {
        bool: "true/false",
        int: "a whole number",
        float: "a number",
        str: "text",
        list: "a list",
        dict: "a mapping",
    }
    return "nothing" if value is None else names.get(type(value), type(value).__name__)
