"""What the processor may be asked for, and what is said of the rest, before anything runs."""

from __future__ import annotations

import dataclasses
import json
import threading
from typing import Any

import pytest
from drawn import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from infeng_grammar import compiled
from infeng_grammar.argument import KINDS, MOST_BYTES
from infeng_grammar.processor import Grammar, Grammars

from infeng_core.api import RequestError, Vocabulary

REFUSED: list[tuple[Any, str]] = [
    (None, "its argument is None, not a mapping"),
    ("json", "its argument is 'json', not a mapping"),
    ({}, "nothing is given: give one of json_object, json_schema"),
    ({"json": True}, "'json' is not known: it takes json_object"),
    ({"regex": "a", "lark": "b"}, "regex, lark is given: give one of"),
    ({"json_object": False}, "grammar json_object: False is not true"),
    ({"json_object": "yes"}, "'yes' is not true"),
    ({"json_schema": 5}, "grammar json_schema: 5 is not an object"),
    ({"json_schema": False}, "False is not an object"),
    ({"json_schema": "{"}, "grammar json_schema: it is not JSON"),
    ({"json_schema": {"a": {1, 2}}}, "it is not JSON: Object of type set"),
    ({"json_schema": {"minimum": float("nan")}}, "it is not JSON: Out of range float"),
    ({"json_schema": {"const": "\ud800"}}, "half a surrogate pair"),
    ({"json_schema": {"type": "text"}}, "grammar json_schema: "),
    ({"json_schema": {"type": "string", "pattern": "(?=a)b"}}, "grammar json_schema: "),
    ({"json_schema": {"type": "string", "format": "color"}}, "color"),
    ({"json_schema": {"type": "array", "uniqueItems": True}}, "uniqueItems"),
    ({"json_schema": {"$ref": "https://example.org/schema"}}, "example.org"),
    ({"json_schema": {"not": {}}}, "not"),
    ({"json_schema": {"enum": []}}, "grammar json_schema: "),
    ({"regex": ""}, "grammar regex: '' is not a text"),
    ({"regex": "("}, "grammar regex: "),
    ({"regex": "a\ud800"}, "half a surrogate pair"),
    ({"regex": r"(a)\1"}, "grammar regex: "),
    ({"regex": "(?=a)b"}, "grammar regex: "),
    ({"choice": "yes"}, "grammar choice: 'yes' is not a list of texts"),
    ({"choice": []}, "[] is not a list of texts"),
    ({"choice": ["a", ""]}, "['a', ''] is not a list of texts"),
    ({"choice": ["a"] * 5000}, "it has 5000 texts: give at most 4096"),
    ({"lark": 'start: "'}, "grammar lark: "),
    ({"lark": "begin: /a/"}, "grammar lark: "),
    ({"lark": "start: other"}, "grammar lark: "),
    ({"lark": 'start: "a" <|im_end|>'}, "names the special token <|im_end|>"),
    ({"lark": "start: <[5-9]>"}, "names the special token <[5-9]>"),
    ({"lark": "start[max_tokens=5]: /a*/"}, "max_tokens is not supported"),
    ({"gbnf": 'start ::= "a"'}, "grammar gbnf: it cannot be parsed: No 'root' rule found"),
    ({"gbnf": "root ::= [a"}, "grammar gbnf: it cannot be parsed"),
    ({"gbnf": "root ::= other"}, "Rule 'other' not found"),
    ({"regex": "(ab?){1,1000000}"}, "it repeats 1000000 times: repeat at most 20000"),
    ({"regex": "a?" * 5000}, "a pattern has 10000 characters: give at most 8192"),
    ({"json_schema": {"maxLength": 10**6}}, "maxLength is 1000000: give at most 20000"),
    ({"json_schema": {"properties": {"enum": {"minItems": 1e6}}}}, "minItems is 1000000.0: give at most 20000"),
    ({"json_schema": {"multipleOf": 100.003}}, "multipleOf is 100.003: give at most 20000 without its decimal point"),
    ({"json_schema": {"items": {"pattern": "a{30000}"}}}, "it repeats 30000 times"),
    ({"json_schema": {"properties": {f"p{i}": {} for i in range(1001)}}}, "an object has 1001 properties"),
    ({"json_schema": {"anyOf": [{"minimum": i} for i in range(501)]}}, "anyOf has 501 branches"),
    ({"lark": 'start: "a"~1..1000000'}, "it repeats 1000000 times"),
    ({"lark": 'start: %json {"maxLength": 1000000}'}, "maxLength is 1000000"),
    ({"gbnf": 'root ::= "' + "a" * 20000 + '"'}, "give at most 16384, or write it as lark"),
    ({"regex": "a", "after": 5}, "grammar after: 5 is not a text of at most 64 characters"),
    ({"regex": "a", "after": "x" * 65}, "is not a text of at most 64 characters"),
    ({"regex": "a", "after": "\ud800"}, "is not a text of at most 64 characters"),
    ({"json_object": True, "whitespace": "no"}, "grammar whitespace: 'no' is given with json_object"),
    ({"regex": "a", "whitespace": True}, "grammar whitespace: True is given with regex"),
    ({"regex": "a" * (MOST_BYTES + 1)}, f"grammar regex: it has {MOST_BYTES + 1} bytes: give at most {MOST_BYTES}"),
]


@pytest.mark.parametrize(("argument", "text"), REFUSED, ids=lambda value: str(value)[:40])
def test_an_invalid_argument_is_refused_with_its_name(grammars: Grammars, argument: Any, text: str):
    for _ in range(2):  # refusals are kept as well
        with pytest.raises(RequestError) as caught:
            grammars.make(argument, ())
        assert text in str(caught.value)
        assert str(caught.value).startswith("grammar")
        assert caught.value.remedy


NESTED = 4000
EXPLODING: dict[str, Any] = {
    "schema in schema": {"json_schema": json.loads('{"items":' * 90 + "{}" + "}" * 90)},
    "regex in regex": {"regex": "(" * NESTED + "a" + ")" * NESTED},
    "lark in lark": {"lark": "start: " + "(" * NESTED + '"a"' + ")" * NESTED},
    "gbnf in gbnf": {"gbnf": "root ::= " + "(" * NESTED + '"a"' + ")" * NESTED},
    "repeated repeats": {"regex": "((((a{1,99}){1,99}){1,99}){1,99}){1,99}"},
    "a long repeat": {"regex": "(ab?){1,20000}"},
    "references in a ring": {"json_schema": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}},
    "many references": {"json_schema": {"$defs": {f"d{i}": {"$ref": "#"} for i in range(5000)}}},
    "many rules": {"lark": "start: r0\n" + "".join(f"r{i}: r{i + 1}\n" for i in range(5000)) + 'r5000: "a"'},
    "an intersection of many": {
        "json_schema": {
            "allOf": [{"anyOf": [{"minimum": i}, {"maximum": -i}, {"multipleOf": i + 2}]} for i in range(60)]
        }
    },
    "patterns that meet": {"json_schema": {"type": "string", "pattern": "(a|b)*a(a|b){30}", "minLength": 500}},
    "a chain of references": {
        "json_schema": {
            "$ref": "#/$defs/d0",
            "$defs": {f"d{i}": {"properties": {"a": {"$ref": f"#/$defs/d{i + 1}"}}} for i in range(2000)}
            | {"d2000": {}},
        }
    },
    "a chain of rules": {"lark": "start: r0\n" + "".join(f"r{i}: r{i + 1}\n" for i in range(4000)) + 'r4000: "a"'},
    "exponential lexer": {"lark": "start: /(a|b)*a(a|b){25}/"},
}


@pytest.mark.parametrize("which", EXPLODING)
def test_an_explosive_grammar_is_refused_or_bounded(grammars: Grammars, which: str):
    done: list[Any] = []

    def run() -> None:
        try:
            processor = grammars.make(EXPLODING[which], ())
            processor.row(())
            done.append(None)
        except RequestError as error:
            done.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(20)
    assert done, "it takes more than 20 seconds"


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
)
TYPES = st.sampled_from(["string", "integer", "number", "object", "array", "boolean", "null", "any"])
KEYWORDS = """type properties items enum const anyOf oneOf allOf required minimum maximum not minLength maxLength
    pattern format additionalProperties patternProperties $ref minItems maxItems prefixItems multipleOf minProperties
    maxProperties $defs if then x-guidance"""
WORDS = st.sampled_from(KEYWORDS.split())
schemas = st.recursive(
    values | TYPES, lambda inner: st.dictionaries(WORDS, inner | st.lists(inner, max_size=3), max_size=5), max_leaves=12
)
regexes = st.text("ab01.*+?(){}[]|\\^$-,dwsbpux<>:=!&~\u00e9\n", max_size=20)
larks = st.text('start: abA"/\\|()[]{}*+?~.<>%ignore\n,0-9&', max_size=40).map(lambda text: "start: " + text)
gbnfs = st.text('root::=ab"[]^-()*+?|{}0,9\\x\n ', max_size=40).map(lambda text: "root ::= " + text)
arguments = st.one_of(
    values,
    st.dictionaries(st.sampled_from([*KINDS, "after", "whitespace", "other"]), values, max_size=3),
    schemas.map(lambda schema: {"json_schema": schema}),
    regexes.map(lambda regex: {"regex": regex}),
    larks.map(lambda lark: {"lark": lark}),
    gbnfs.map(lambda gbnf: {"gbnf": gbnf}),
    st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=5).map(lambda choice: {"choice": choice}),
)


def fuzz(grammars: Grammars, argument: Any) -> None:
    try:
        processor = grammars.make(argument, ())
    except RequestError:
        return
    processor.row(())


@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(argument=arguments)
def test_any_argument_gives_a_processor_or_a_request_error(grammars: Grammars, argument: Any):
    fuzz(grammars, argument)


@pytest.mark.nightly
@settings(max_examples=20_000, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(argument=arguments)
def test_very_many_arguments_give_a_processor_or_a_request_error(grammars: Grammars, argument: Any):
    fuzz(grammars, argument)


def test_a_tokenizer_without_token_texts_or_end_tokens_is_an_error(vocabulary: Vocabulary):
    class Ids:
        vocab_size = 5

    for other, text in (
        (
            dataclasses.replace(vocabulary, tokenizer=Ids()),
            "the engine's tokenizer does not give the text of its tokens",
        ),
        (dataclasses.replace(vocabulary, ends=()), "the model has no end-of-text token"),
    ):
        with pytest.raises(RequestError, match=text):
            Grammars(other).make({"json_object": True}, ())


def test_a_grammar_is_compiled_once_by_its_content(vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch):
    grammars, calls = Grammars(vocabulary), []
    inner = compiled.compile_grammar
    monkeypatch.setattr(
        "infeng_grammar.processor.compile_grammar", lambda *given: calls.append(given[1]) or inner(*given)
    )
    arguments: list[Any] = [{"regex": f"a{index}"} for index in range(3)]
    threads = [threading.Thread(target=grammars.make, args=(one, ())) for one in arguments * 5]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(call.text for call in calls) == ["a0", "a1", "a2"]
    for index in range(64):
        grammars.make({"regex": f"b{index}"}, ())
    grammars.make({"regex": "b1"}, ())
    assert len(calls) == 67
    grammars.make({"regex": "a0"}, ())  # the longest unused have gone
    assert len(calls) == 68


def test_a_matcher_is_reused_and_never_shared(grammars: Grammars):
    argument = {"regex": "[0-9]{40}"}
    first = grammars.make(argument, ())
    assert isinstance(first, Grammar)
    matcher = first._matcher
    first.extend(list(_digits(grammars))[:3])
    others = [grammars.make(argument, ()) for _ in range(3)]
    del first
    again = grammars.make(argument, ())
    assert isinstance(again, Grammar) and again._matcher is matcher
    fresh = grammars._compiled.get(grammars_key(argument), lambda: None)._template  # type: ignore[union-attr, arg-type, return-value]
    assert matcher.compute_bitmask() == fresh.deep_copy().compute_bitmask()
    assert len({id(one._matcher) for one in (*others, again)}) == 4  # type: ignore[attr-defined]


def _digits(grammars: Grammars) -> Any:
    return (id_ for id_ in range(300) if grammars._known().spelt()[id_].isdigit())


def grammars_key(argument: Any) -> Any:
    from infeng_grammar.argument import read

    return read(argument)[0]
