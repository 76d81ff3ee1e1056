"""145 published schemas: each is compiled or refused by name; masks agree with the instances that come with them."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from grammar_parts import walk
from infeng_grammar.processor import Grammars
from infeng_tokenizers.api import HfTokenizer

from infeng_core.api import Engine, EngineConfig, Request, RequestError, SamplingParams, Vocabulary

END = 2


@pytest.fixture(scope="module")
def llama(data: Path) -> Grammars:
    """Processors over the 32,000 tokens of Llama 2."""
    directory = data / "tokenizer-tinyllama"
    return Grammars(Vocabulary(HfTokenizer(directory, EngineConfig()), 32000, (END,), directory))


@pytest.fixture(scope="module")
def schemas(data: Path) -> dict[str, Any]:
    """The schemas with their instances, by name."""
    paths = sorted((data / "jsonschemabench").rglob("*.json"))
    found = {f"{path.parent.name}/{path.stem}": json.loads(path.read_text("utf-8")) for path in paths}
    assert len(found) == 145
    return found


ONE_OF = "oneOf constraints are not supported"
REFUSED: dict[str, str] = {
    "Glaiveai2K/Glaiveai2K__calculate_area_2503b276": ONE_OF,
    "Glaiveai2K/Glaiveai2K__calculate_area_eb6be0b0": ONE_OF,
    "Handwritten/Handwritten__allOfPProp1": "patternProperty regexes /^.{1,3}$/ and /a/ are not disjoint",
    "Handwritten/Handwritten__allOfPProp4": "patternProperty regexes /^.{1,3}$/ and /a/ are not disjoint",
    "Handwritten/Handwritten__allany2": '["not"]',
    "Handwritten/Handwritten__allany7": '["not"]',
    "Handwritten/Handwritten__dep8": '["dependencies"]',
    "Handwritten/Handwritten__existsName1": '["not"]',
    "Handwritten/Handwritten__key1": '["else", "if", "then"]',
    "Handwritten/Handwritten__notnames6": '["not"]',
    "Handwritten/Handwritten__oneof5_2": ONE_OF,
    "Handwritten/Handwritten__oneofpr3": '["not"]',
    "JsonSchemaStore/JsonSchemaStore__avro-avsc": '["not"]',
    "JsonSchemaStore/JsonSchemaStore__dotnet-releases-index": ONE_OF,
    "JsonSchemaStore/JsonSchemaStore__openrewrite": '["if", "then"]',
    "JsonSchemaStore/JsonSchemaStore__proxies": '["uniqueItems"]',
    "JsonSchemaStore/JsonSchemaStore__shopware-project-schema": '["if", "then"]',
    "JsonSchemaStore/JsonSchemaStore__solidaritySchema": '["uniqueItems"]',
    "JsonSchemaStore/JsonSchemaStore__strmprivacy.api.entities.v1.Stream": ONE_OF,
    "JsonSchemaStore/JsonSchemaStore__webhook": '["uniqueItems"]',
    "MCPspec/MCPspec__ClientRequest": "Unknown format: uri-template",
    "MCPspec/MCPspec__GetPromptResult": "Unknown format: byte",
    "MCPspec/MCPspec__ServerResult": "Unknown format: byte",
}
"""Schemas that are refused, and what the message names."""


def test_every_schema_is_compiled_or_refused_by_name(llama: Grammars, schemas: dict[str, Any]):
    refused = {}
    for name, document in schemas.items():
        try:
            llama.make({"json_schema": document["schema"]}, ())
        except RequestError as error:
            refused[name] = str(error)
    assert refused.keys() == REFUSED.keys()
    assert not {name: text for name, text in refused.items() if REFUSED[name] not in text}
    assert not [text for text in refused.values() if "coerce_one_of" in text]


@pytest.mark.slow
def test_masks_accept_every_valid_instance_and_reject_every_invalid_one(llama: Grammars, schemas: dict[str, Any]):
    counts = Counter[bool]()
    for name in schemas.keys() - REFUSED.keys():
        for place, case in enumerate(schemas[name]["tests"]):
            ids = llama._known().library.tokenize_str(json.dumps(case["data"], ensure_ascii=False))
            count = walk(llama.make({"json_schema": schemas[name]["schema"]}, ()), ids, END)  # type: ignore[arg-type]
            assert (count == len(ids) + 1) == case["valid"], (name, place)
            counts[case["valid"]] += 1
    assert counts == {True: 171, False: 261}


CLOSING = SamplingParams(temperature=0.8, seed=1, max_tokens=200)


def drawn(engine: Engine, documents: dict[str, Any]) -> tuple[int, int]:
    """Answer each schema by drawing, closing tokens being liked; return how many texts ended, and of how many."""
    texts = ((id_, engine.tokenizer.decode([id_]).strip()) for id_ in range(engine.tokenizer.vocab_size))
    bias = {id_: 9.0 for id_, text in texts if text and set(text) <= set('"}],')}
    params = replace(CLOSING, logit_bias=tuple(bias.items()))
    requests = [
        Request("Answer: ", replace(params, processors=(("grammar", {"json_schema": document["schema"]}),)))
        for document in documents.values()
    ]
    ended = 0
    for name, document, completion in zip(documents, documents.values(), engine.generate(requests), strict=True):
        if completion.finish_reason == "stop":
            kind = jsonschema.validators.validator_for(document["schema"])
            found = [error.message for error in kind(document["schema"]).iter_errors(json.loads(completion.text))]
            assert not found, (name, completion.text)
            ended += 1
    return ended, len(requests)


@pytest.mark.slow
def test_samples_for_some_schemas_are_valid(engine: Engine, schemas: dict[str, Any]):
    names = [name for name in schemas if name not in REFUSED][::20]
    ended, count = drawn(engine, {name: schemas[name] for name in names})
    assert ended >= count / 2


@pytest.mark.slow
def test_samples_for_every_schema_are_valid(engine: Engine, schemas: dict[str, Any]):
    ended, count = drawn(engine, {name: document for name, document in schemas.items() if name not in REFUSED})
    assert ended >= count / 2
