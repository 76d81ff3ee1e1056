"""Structured output by the engine: what ends holds to its grammar, forced tokens save steps, nobody else notices."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from engine_parts import Recorder, preempting
from grammar_parts import MODEL
from infeng_grammar.processor import Grammar

from infeng_core.api import Engine, Request, RequestError, SamplingParams
from infeng_core.cli import main

GREEDY = SamplingParams(temperature=0.0, max_tokens=120)
SAMPLED = SamplingParams(temperature=0.8, seed=3, max_tokens=120)

PERSON = {
    "type": "object",
    "properties": {
        "first_name": {"enum": ["Dorothy", "Oscar"]},
        "favourite_colour": {"enum": ["emerald", "yellow", "ruby"]},
        "has_a_little_dog": {"type": "boolean"},
    },
    "required": ["first_name", "favourite_colour", "has_a_little_dog"],
    "additionalProperties": False,
}


def grammar(params: SamplingParams, **argument: Any) -> SamplingParams:
    return replace(params, processors=(("grammar", argument),))


def mix() -> list[Request]:
    """Return requests with and without grammars."""
    found = []
    for params in (GREEDY, SAMPLED):
        found += [
            Request("Who goes to the city?", grammar(params, json_schema=PERSON)),
            Request("Once upon a time", replace(params, max_tokens=40)),
            Request("Is it far?", grammar(params, choice=["yes, it is far away", "no, it is not far"])),
            Request("Tell me more: ", grammar(params, regex="([a-z]{2,6} ){3}[a-z]+\\.")),
            Request("Think first.", grammar(params, json_schema=PERSON, after=".")),
        ]
    return found


def tokens(engine: Engine, requests: list[Request]) -> list[tuple[int, ...]]:
    return [completion.token_ids for completion in engine.generate(requests)]


@pytest.fixture(scope="module")
def alone(engine: Engine) -> list[tuple[int, ...]]:
    """What each of ``mix`` gives by itself."""
    return [tokens(engine, [request])[0] for request in mix()]


def test_a_finished_answer_matches_its_grammar(engine: Engine):
    found = engine.generate(mix())
    for completion, request in zip(found, mix(), strict=True):
        [(_, argument)] = request.params.processors or (("", {}),)
        if "json_schema" in argument:
            assert completion.finish_reason == "stop"
            after = argument.get("after", "")
            text = completion.text.split(after, 1)[1] if after else completion.text
            jsonschema.validate(json.loads(text), PERSON)
        if "choice" in argument:
            assert completion.finish_reason == "stop" and completion.text in argument["choice"]


def test_a_grammar_does_not_change_other_requests_of_the_batch(engine: Engine, alone: list[tuple[int, ...]]):
    assert tokens(engine, mix()) == alone


def test_forced_tokens_save_steps_and_change_no_token(
    engine: Engine, alone: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
):
    steps = {}
    for way in ("forced", "drawn"):
        if way == "drawn":
            monkeypatch.setattr(Grammar, "forced", lambda self: [])
        recorder = Recorder(engine)
        assert tokens(engine, mix()) == alone
        steps[way] = len(recorder.rows)
        one = engine.generate(mix()[:1])[0]
        steps[way, "one"] = len(recorder.rows) - steps[way]
        assert (one.usage.accepted_tokens > 0) == (way == "forced")
        assert one.usage.drafted_tokens == one.usage.accepted_tokens
        engine.executable = recorder._inner
    assert steps["forced"] < steps["drawn"]
    assert steps["forced", "one"] < 0.5 * steps["drawn", "one"]


def test_speculation_changes_no_token(cache: Path, alone: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("INFENG_CACHE", str(cache))
    with Engine(MODEL, threads=1, speculate="ngram:4") as engine:
        assert tokens(engine, mix()) == alone
        assert [tokens(engine, [request])[0] for request in mix()] == alone


def test_preemption_and_restart_change_no_token(
    engine: Engine, alone: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
):
    with monkeypatch.context() as patch:
        scheduler = preempting(engine, patch)
        before = scheduler.preempted
        assert tokens(engine, mix()) == alone
        assert scheduler.preempted > before + 5
    streams = [engine.submit(request) for request in mix()]
    steps = 0
    while not all(stream.finished for stream in streams):
        engine.step()
        steps += 1
        if steps in (5, 9, 20):
            engine._in_flight.is_torn = True  # as after Ctrl-C
    assert [stream.result().token_ids for stream in streams] == alone


def test_a_cancelled_requests_matcher_is_reused(engine: Engine, alone: list[tuple[int, ...]]):
    stream = engine.submit(mix()[0])
    for _ in range(4):
        engine.step()
    stream.cancel()
    engine.step()
    assert stream.result().finish_reason == "cancelled"
    del stream
    assert tokens(engine, mix()[:1]) == alone[:1]


def test_a_request_with_an_invalid_grammar_is_refused_before_it_is_queued(engine: Engine):
    with pytest.raises(RequestError, match="grammar json_schema: "):
        engine.submit("x", grammar(GREEDY, json_schema={"type": "nothing"}))
    assert engine.scheduler.waiting == engine.scheduler.running == 0


def test_a_grammar_and_the_engines_own_masks_combine(engine: Engine):
    params = grammar(GREEDY, choice=["yes", "no"])
    [plain] = engine.generate("Is it?", params)
    [other] = engine.generate("Is it?", replace(params, bad_words_ids=(plain.token_ids[:1],)))
    assert {plain.text, other.text} <= {"yes", "no"} and plain.token_ids != other.token_ids


def test_the_command_line_takes_schemas_expressions_and_choices(
    tmp_path: Path, cache: Path, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("INFENG_CACHE", str(cache))
    (tmp_path / "schema.json").write_text(json.dumps(PERSON))
    (tmp_path / "moves.gbnf").write_text('root ::= "move " [a-h] [1-8]')

    def run(*options: str) -> tuple[int, str, str]:
        status = main(["run", str(MODEL), "-p", "Who?", "-n", "80", "--seed", "1", "-t", "1", *options])
        out, err = capsysbinary.readouterr()
        return status, out.decode(), err.decode()

    status, out, _ = run("--json-schema", str(tmp_path / "schema.json"))
    assert status == 0
    jsonschema.validate(json.loads(out), PERSON)
    assert run("--choice", "left", "--choice", "right")[1] in ("left", "right")
    assert run("--grammar", str(tmp_path / "moves.gbnf"))[1].startswith("move ")
    for options, text in (
        (["--json-schema", "{"], "--json-schema: it is not JSON"),
        (["--json-schema", str(tmp_path / "none")], "none: No such file"),
        (["--regex", "("], "grammar regex: "),
    ):
        status, out, err = run(*options)
        assert (status, out) == (2, "") and text in err
    with pytest.raises(SystemExit):
        run("--regex", "a", "--choice", "b")
