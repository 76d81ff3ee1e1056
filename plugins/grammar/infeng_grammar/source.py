"""Requested grammars converted to llguidance's format, after checks for input that it fails on or ignores."""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

from llguidance import LLMatcher
from llguidance.gbnf_to_lark import gbnf_to_lark

from infeng_core.api import RequestError
from infeng_grammar.argument import Wanted
from infeng_grammar.bounds import check_pattern, check_repeats, check_schema, embedded

DEEPEST = 64
"""Most nested brackets: llguidance recurses into them on its caller's stack."""

MOST_RULES = 4096
"""Most rules of a grammar, or references of a schema: llguidance recurses along chains of them."""

MOST_GBNF = 1 << 14
"""Most characters of a GBNF grammar: converting it to Lark takes quadratic time."""

WHITESPACE: dict[bool | None, dict[str, Any]] = {
    None: {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "},
    False: {"whitespace_flexible": False, "item_separator": ",", "key_separator": ":"},
    True: {"whitespace_pattern": r"\x20|\n[\x20\t]{0,40}", "item_separator": ",", "key_separator": ":"},
}
"""llguidance's options by ``Wanted.whitespace``. With True the longest run of whitespace is a line break and 40
characters."""

_LITERALS = re.compile(r'"(?:[^"\\\n]|\\.)*"|//[^\n]*|#[^\n]*|/(?:[^/\\\n]|\\.)+/')
_SPECIAL = re.compile(r"<[^\s<>]+>")
_OPTION = re.compile(r"\b(max_tokens|temperature|stop|stop_capture)\s*=")


def source(wanted: Wanted) -> str:
    """Return the grammar in llguidance's format; raises RequestError for an invalid or oversized one."""
    return _MAKERS[wanted.kind](wanted)


def _schema(wanted: Wanted) -> str:
    _check_depth("json_schema", re.sub(r'"(?:[^"\\]|\\.)*"', "", wanted.text))
    count = wanted.text.count('"$ref"') + wanted.text.count('"$dynamicRef"') + wanted.text.count('"$recursiveRef"')
    if count > MOST_RULES:
        _refuse("json_schema", f"it has {count} references", f"give at most {MOST_RULES}")
    check_schema("json_schema", json.loads(wanted.text))
    options: Any = {"lenient": False, "coerce_one_of": False, **WHITESPACE[wanted.whitespace]}
    return LLMatcher.grammar_from_json_schema(wanted.text, overrides=options)


def _regex(wanted: Wanted) -> str:
    check_pattern("regex", wanted.text)
    return LLMatcher.grammar_from_regex(wanted.text)


def _choice(wanted: Wanted) -> str:
    """Return one regular expression for all choices, since one choice may be a prefix of another."""
    return LLMatcher.grammar_from_regex("|".join(map(_escaped, json.loads(wanted.text))))


def _escaped(text: str) -> str:
    """Return a text escaped for Rust's regex syntax."""
    return "".join(letter if letter.isalnum() else f"\\x{{{ord(letter):X}}}" for letter in text)


def _lark(wanted: Wanted) -> str:
    _check_lark("lark", wanted.text)
    return _listed(wanted.text)


def _gbnf(wanted: Wanted) -> str:
    _check_depth("gbnf", wanted.text)
    if len(wanted.text) > MOST_GBNF:
        _refuse("gbnf", f"it has {len(wanted.text)} characters", f"give at most {MOST_GBNF}, or write it as lark")
    try:
        lark = gbnf_to_lark(wanted.text)
    except Exception as error:  # gbnf_to_lark raises plain Exception and IndexError
        _refuse("gbnf", f"it cannot be parsed: {error}", "give a grammar that llama.cpp accepts, with a rule root")
    _check_lark("gbnf", lark)
    return _listed(lark)


def _listed(lark: str) -> str:
    return json.dumps({"grammars": [{"lark_grammar": lark}]})


def _check_lark(kind: str, lark: str) -> None:
    for literal in _LITERALS.findall(lark):
        if literal.startswith("/"):
            check_pattern(kind, literal)
    for schema in embedded(lark):
        check_schema(kind, schema)
    bare = _LITERALS.sub(" ", lark)
    check_repeats(kind, bare)
    _check_depth(kind, bare)
    rules = bare.count(":")
    if rules > MOST_RULES:
        _refuse(kind, f"it has about {rules} rules", f"give at most {MOST_RULES}")
    if special := _SPECIAL.search(bare):
        why = f"it names the special token {special[0]}, and a constrained text never holds special tokens"
        _refuse(kind, why, "write it as a text in quotes, or use `after`")
    if option := _OPTION.search(bare):
        _refuse(kind, f"{option[1]} is not supported", "leave it out; a request has max_tokens, temperature and stop")


def _check_depth(kind: str, text: str) -> None:
    depth = 0
    for letter in re.findall(r"[(){}\[\]]", text):
        depth = depth + 1 if letter in "({[" else max(0, depth - 1)
        if depth > DEEPEST:
            _refuse(kind, f"brackets are nested more than {DEEPEST} deep", "make it flatter")


_MAKERS = {"json_schema": _schema, "regex": _regex, "choice": _choice, "lark": _lark, "gbnf": _gbnf}


def _refuse(kind: str, why: str, remedy: str) -> NoReturn:
    raise RequestError(f"grammar {kind}", why, remedy)
