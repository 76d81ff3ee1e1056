"""The grammar of Gemma's calls: arguments by the functions' schemas, in the notation of its template.

Keys have no quotes and are in alphabetical order, texts are between ``<|"|>``, and there are no blanks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from infeng_chat.answers.calls import Tag, Tool, parameters
from infeng_chat.syntaxes import lark
from infeng_core.api import RequestError

MOST_DEPTH = 32
MOST_RULES = 4096

_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_INTEGER = "/-?(0|[1-9][0-9]{0,18})/"
_NUMBER = r"/-?(0|[1-9][0-9]{0,18})(\.[0-9]{1,18})?([eE][+-]?[0-9]{1,2})?/"
_UNKNOWN = ("allOf", "not", "if", "patternProperties", "prefixItems", "dependentSchemas")
_PLAIN_KEY = re.compile(r"[\w.-]+")
_REMEDY = "leave it out of the function's parameters, or give tool_choice auto"


class Rules:
    """Builds the rules of one grammar."""

    def __init__(self, tag: Tag, quote: str) -> None:
        """tag: converts tags to a grammar's notation. quote: the tag around texts."""
        self.lines: list[str] = []
        self._quote = tag(quote)
        self._root: Mapping[str, Any] = {}
        self._references: dict[str, str] = {}
        self._any = ""
        self._made = 0
        text = "text: /([^<]|<[^|])*/" if self._is_token else f"text[suffix={self._quote}]: /(?s:.*)/"
        self.lines.append(text)

    @property
    def _is_token(self) -> bool:
        """Whether the quote is a special token, which text cannot contain."""
        return self._quote.startswith("<[")

    def rule(self, expression: str) -> str:
        """Add a rule and return its name; raises RequestError for too many rules."""
        name = self._reserved()
        self.lines.append(f"{name}: {expression}")
        return name

    def arguments(self, tool: Tool) -> str:
        """Return the expression for a function's arguments; raises RequestError for an unsupported schema."""
        self._root, self._references = parameters(tool), {}
        return self._object(self._root, 0)

    # ------------------------------------------------------------------------------------------------- the values ---

    def _value(self, schema: Any, depth: int) -> str:
        if depth > MOST_DEPTH:
            raise RequestError("tools", f"parameters are nested more than {MOST_DEPTH} deep", "flatten them")
        if not isinstance(schema, Mapping):
            return self._anything()
        schema = _plain(schema)
        if "$ref" in schema:
            return self._reference(str(schema["$ref"]), depth)
        if "const" in schema:
            return self._literal(schema["const"])
        if isinstance(schema.get("enum"), list):
            return self._either([self._literal(one) for one in schema["enum"]])
        for several in ("anyOf", "oneOf"):
            if isinstance(schema.get(several), list):
                return self._either([self._value(one, depth + 1) for one in schema[several]])
        kinds = schema.get("type")
        if isinstance(kinds, list):
            return self._either([self._of_kind(kind, schema, depth) for kind in kinds])
        return self._of_kind(kinds, schema, depth)

    def _of_kind(self, kind: Any, schema: Mapping[str, Any], depth: int) -> str:
        if kind == "string":
            return self._text()
        if kind in ("integer", "number"):
            bounds = {name: schema[name] for name in _BOUNDS if name in schema}
            plain = _INTEGER if kind == "integer" else _NUMBER
            return lark.schema({"type": kind, **bounds}) if bounds else plain
        if kind == "boolean":
            return '("true" | "false")'
        if kind == "null":
            return '"null"'
        if kind == "array":
            return self._array(schema, depth)
        if kind == "object" or (kind is None and "properties" in schema):
            return self._object(schema, depth)
        return self._anything()

    def _text(self) -> str:
        return f"{self._quote} text {self._quote}" if self._is_token else f"{self._quote} text"

    def _literal(self, value: Any) -> str:
        if isinstance(value, str):
            return f"({self._quote} {lark.quoted(value)} {self._quote})" if value else f"({self._quote} {self._quote})"
        if isinstance(value, list):
            return _between("[", [self._literal(one) for one in value], "]")
        if isinstance(value, Mapping):
            return _between("{", [f"{self._key(key)} {self._literal(one)}" for key, one in _sorted(value)], "}")
        return lark.quoted(json.dumps(value))

    def _array(self, schema: Mapping[str, Any], depth: int) -> str:
        item = self.rule(self._value(schema.get("items", {}), depth + 1))
        least, most = _count(schema, "minItems", 0), _count(schema, "maxItems", None)
        if most == 0:
            return '"[]"'
        more = "" if most == 1 else f'("," {item}){{{max(0, (least or 0) - 1)},{"" if most is None else most - 1}}}'
        return f'"[" {item} {more} "]"' if least else f'"[" ({item} {more})? "]"'

    def _object(self, schema: Mapping[str, Any], depth: int) -> str:
        schema = _plain(schema)
        if "$ref" in schema:
            return self._reference(str(schema["$ref"]), depth)
        properties = schema.get("properties")
        if not isinstance(properties, Mapping):
            if schema.get("additionalProperties") is False:
                return '"{}"'
            of = schema.get("additionalProperties")
            return self._map(self.rule(self._value(of if of is not True else None, depth + 1)))
        needed = schema.get("required") or []
        first = more = self.rule('""')
        for key, of in reversed(_sorted(properties)):
            member = self.rule(f"{self._key(key)} {self._value(of, depth + 1)}")
            begun, gone_on = f"{member} {more}", f'"," {member} {more}'
            first = self.rule(begun if key in needed else f"{begun} | {first}")
            more = self.rule(gone_on if key in needed else f"{gone_on} | {more}")
        return f'"{{" {first} "}}"'

    def _map(self, value: str) -> str:
        member = self.rule(f'/[A-Za-z_][A-Za-z0-9_]{{0,63}}/ ":" {value}')
        return f'"{{" ({member} ("," {member})*)? "}}"'

    def _key(self, key: str) -> str:
        if _PLAIN_KEY.fullmatch(key):
            return lark.quoted(f"{key}:")
        return f'{self._quote} {lark.quoted(key)} {self._quote} ":"'

    def _anything(self) -> str:
        """Return the name of the rule for any value."""
        if not self._any:
            name = self._any = self._reserved()
            words = ('"true"', '"false"', '"null"')
            kinds = (self._text(), _NUMBER, *words, f'"[" ({name} ("," {name})*)? "]"', self._map(name))
            self.lines.append(f"{name}: {' | '.join(kinds)}")
        return self._any

    def _reference(self, where: str, depth: int) -> str:
        if where not in self._references:
            name = self._references[where] = self._reserved()
            self.lines.append(f"{name}: {self._value(self._found(where), depth + 1)}")
        return self._references[where]

    def _found(self, where: str) -> Any:
        """Return the target of a reference within the function's schema."""
        found: Any = self._root
        if where != "#" and not where.startswith("#/"):
            raise RequestError("tools", f"{where!r:.80} leads out of the parameters", _REMEDY)
        for part in where.removeprefix("#").split("/")[1:]:
            part = part.replace("~1", "/").replace("~0", "~")
            if not isinstance(found, Mapping) or part not in found:
                raise RequestError("tools", f"{where!r:.80} leads nowhere", _REMEDY)
            found = found[part]
        return found

    def _either(self, expressions: Sequence[str]) -> str:
        return self.rule(" | ".join(expressions)) if expressions else self._anything()

    def _reserved(self) -> str:
        """Reserve the name of a rule that is added later."""
        self._made += 1
        if self._made > MOST_RULES:
            remedy = "give fewer, or tool_choice auto"
            raise RequestError("tools", "they have too many parameters for a grammar", remedy)
        return f"r{self._made}"


def calls(tools: Mapping[str, Tool], tag: Tag, parallel: bool, *, open: str, close: str, quote: str) -> str:
    """Return the grammar of one call of ``tools``, or with ``parallel`` of several; raises RequestError."""
    rules = Rules(tag, quote)
    names = [
        rules.rule(f"{tag(open)} {lark.quoted(f'call:{name}')} {rules.arguments(tool)} {tag(close)}")
        for name, tool in tools.items()
    ]
    return "\n".join([f"start: call{'+' if parallel else ''}", f"call: {' | '.join(names)}", *rules.lines, ""])


def _plain(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a schema with a single ``allOf`` merged; raises RequestError for unsupported keywords."""
    together = schema.get("allOf")
    if isinstance(together, list) and len(together) == 1 and isinstance(together[0], Mapping):
        schema = {**{name: of for name, of in schema.items() if name != "allOf"}, **together[0]}
    for name in _UNKNOWN:
        if name in schema:
            raise RequestError("tools", f"{name} is not supported in parameters of this model's calls", _REMEDY)
    return schema


def _sorted(members: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return the members of a mapping in the order of Jinja's ``dictsort``."""
    return sorted(members.items(), key=lambda one: one[0].lower())


def _between(begin: str, expressions: Sequence[str], end: str) -> str:
    inner = ' "," '.join(expressions)
    return " ".join(part for part in (lark.quoted(begin), inner, lark.quoted(end)) if part)


def _count(schema: Mapping[str, Any], name: str, otherwise: int | None) -> int | None:
    found = schema.get(name)
    return found if isinstance(found, int) and not isinstance(found, bool) and 0 <= found <= 1000 else otherwise
