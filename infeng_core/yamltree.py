"""YAML as plain data with the line of every value, read from the parser's events.

The parser keeps its own stack and emits one event at a time, so nesting is limited before any recursion: libyaml's
composer would overflow the process's stack.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

import yaml

from infeng_core.errors import InfengError

MAX_NODES = 20_000  # a manifest has tens of values
MAX_DEPTH = 16
MAX_SCALAR = 100  # characters of a number, a date, a word such as true; texts have no limit
TOO_MANY = "too many or too deeply nested values"

Key = tuple[str, ...]

# libyaml if PyYAML was built with it: reading takes a tenth of the time, and every command reads every plugin.yaml.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_COLLECTIONS = (None, "!", "tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")


def parse(
    text: str, path: Path, kind: type[InfengError], max_nodes: int = MAX_NODES, remedy: str = ""
) -> tuple[Any, dict[Key, int]]:
    """Return the only document of ``text``, and the 1-based line of each key path; None for an empty document.

    Keys are texts. A key given twice, an anchor, an unknown tag, too many or too deeply nested values, and any other
    fault are errors of ``kind`` that begin with "path:line".
    """
    try:
        loader = _Loader(text)
        try:
            return (reader := _Reader(loader, path, kind, max_nodes, remedy)).document(), reader.lines
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        # libyaml since 0.2.6 has a bound of its own, which it may meet first: it reads ahead for keys.
        is_deep = "maximum nesting depth" in (error.problem or "")
        why = TOO_MANY if is_deep else error.problem or "not valid YAML"
        raise kind(f"{path}:{line}", why, remedy or "fix the syntax") from None
    except (yaml.YAMLError, ValueError) as error:  # a character that YAML does not allow
        raise kind(f"{path}", str(error).splitlines()[0], remedy or "fix the syntax") from None


class _Reader:
    def __init__(self, loader: Any, path: Path, kind: type[InfengError], max_nodes: int, remedy: str) -> None:
        self.loader = loader
        self.path = path
        self.kind = kind
        self.left = max_nodes
        self.remedy = remedy
        self.lines: dict[Key, int] = {}

    def document(self) -> Any:
        self.loader.get_event()
        if self.loader.check_event(yaml.StreamEndEvent):
            return None
        self.loader.get_event()
        data = self.value(())
        self.loader.get_event()
        if not self.loader.check_event(yaml.StreamEndEvent):
            self.fail(self.loader.peek_event(), "a second document begins", "keep one")
        return data

    def value(self, key: Key) -> object:
        event: Any = self.loader.get_event()
        self.lines.setdefault(key, event.start_mark.line + 1)
        self.left -= 1
        if self.left < 0 or len(key) > MAX_DEPTH:
            self.fail(event, TOO_MANY)
        if event.anchor is not None:  # an alias has one too
            self.fail(event, "anchors and aliases are not read", "write the value out")
        if isinstance(event, yaml.ScalarEvent):
            return self.scalar(event)
        if event.tag not in _COLLECTIONS:
            self.fail(event, f"the tag {event.tag[:80]!r} is not known")
        if isinstance(event, yaml.MappingStartEvent):
            return self.mapping(key)
        items: list[object] = []
        while not self.loader.check_event(yaml.SequenceEndEvent):
            items.append(self.value((*key, str(len(items)))))
        self.loader.get_event()
        return items

    def mapping(self, key: Key) -> dict[str, object]:
        result: dict[str, object] = {}
        while not self.loader.check_event(yaml.MappingEndEvent):
            event = self.loader.get_event()
            line = event.start_mark.line + 1
            if not isinstance(event, yaml.ScalarEvent) or event.anchor is not None:
                self.fail(event, "a key must be a plain word")
            place = (*key, event.value)
            if event.value in result:
                self.fail(event, "given twice", "keep one of the two", f": {'.'.join(place)}")
            self.lines[place] = line
            result[event.value] = self.value(place)
        self.loader.get_event()
        return result

    def scalar(self, event: Any) -> object:
        tag = event.tag
        if tag in (None, "!"):
            tag = self.loader.resolve(yaml.ScalarNode, event.value, event.implicit)
        if tag == "tag:yaml.org,2002:str":
            return event.value
        node = yaml.ScalarNode(tag, event.value, event.start_mark, event.end_mark)
        try:
            if len(event.value) > MAX_SCALAR:
                raise ValueError("too long")
            return self.loader.construct_object(node)
        except yaml.YAMLError:
            raise
        # PyYAML lets through what its scalars raise: a date such as 2001-99-99, a number without digits.
        except (ValueError, TypeError, ArithmeticError, LookupError, AttributeError):
            self.fail(event, f"{event.value[:40]!r} is not what its tag says: {tag[:80]}")

    def fail(self, event: Any, why: str, remedy: str = "", key: str = "") -> NoReturn:
        raise self.kind(f"{self.path}:{event.start_mark.line + 1}{key}", why, self.remedy or remedy)
