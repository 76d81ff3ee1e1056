"""Ollama's routes, held to the published client ``ollama`` over real HTTP, and to scripted answers."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import ollama
import pytest
from dialect_parts import relabelled, speaking
from infeng_demo import model_dir
from infeng_dialects.ollama.reading import read_chat, read_generate
from infeng_serve.auth import Keys
from infeng_serve.protocol.answer import Context
from infeng_serve.protocol.errors import ApiError
from infeng_tokenizers.api import HfTokenizer
from protocol_parts import CALLS, SAID, TOOLS, batches, body_of, context_of, refusal, scripted
from serve_parts import Running, slowed

from infeng_core.api import EngineConfig

QUESTION = [{"role": "user", "content": "Tom has 3 boxes. How many boxes has Tom?"}]
GREEDY = {"num_predict": 16, "temperature": 0}
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def client(served: Running) -> ollama.Client:
    return ollama.Client(host=served.url)


@pytest.fixture
def context() -> Context:
    return context_of(HfTokenizer(model_dir(), EngineConfig()), context=1024)


# ------------------------------------------------------------------------------------------------------ the client ---


@pytest.mark.parametrize("model", ["demo", "bard", "bard:latest"])
def test_a_chat_and_its_stream_equal_that_of_openai(client: ollama.Client, served: Running, model: str):
    fields = {"model": model.removesuffix(":latest"), "messages": QUESTION, "max_tokens": 16, "temperature": 0}
    wanted = served.ask("/v1/chat/completions", fields).json
    made = client.chat(model, QUESTION, options=GREEDY)
    assert made.message.content == wanted["choices"][0]["message"]["content"]
    assert (made.model, made.message.role, made.done, made.done_reason) == (model, "assistant", True, "length")
    usage = wanted["usage"]
    assert (made.prompt_eval_count, made.eval_count) == (usage["prompt_tokens"], usage["completion_tokens"])
    assert made.total_duration and made.eval_duration
    pieces = list(client.chat(model, QUESTION, options=GREEDY, stream=True))
    assert "".join(piece.message.content or "" for piece in pieces) == made.message.content
    assert [piece.done for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    assert pieces[-1].eval_count == made.eval_count


def test_generate_answers_by_the_template_or_completes_a_raw_text(client: ollama.Client, served: Running):
    prompt = "Once upon a time"
    raw = client.generate("demo", prompt, raw=True, options=GREEDY)
    fields = {"model": "demo", "prompt": prompt, "max_tokens": 16, "temperature": 0}
    assert raw.response == served.ask("/v1/completions", fields).json["choices"][0]["text"]
    made = client.generate("demo", prompt, system="Be brief.", options=GREEDY)
    said = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": prompt}]
    assert made.response == client.chat("demo", said, options=GREEDY).message.content
    pieces = list(client.generate("demo", prompt, raw=True, options=GREEDY, stream=True))
    assert "".join(piece.response or "" for piece in pieces) == raw.response
    assert client.generate("demo", "").done_reason == "load"
    assert client.chat("demo", []).done_reason == "load"


def test_the_asynchronous_client_streams_the_same_text(client: ollama.Client, served: Running):
    async def text() -> str:
        pieces = await ollama.AsyncClient(host=served.url).chat("demo", QUESTION, options=GREEDY, stream=True)
        return "".join([piece.message.content or "" async for piece in pieces])

    assert asyncio.run(text()) == client.chat("demo", QUESTION, options=GREEDY).message.content


def test_a_schema_or_json_holds_the_answer(client: ollama.Client):
    options = {"num_predict": 60, "temperature": 0}
    held = client.chat("demo", QUESTION, format=CITY, options=options)
    assert json.loads(held.message.content or "")["city"] in ("Paris", "Rome")
    assert (client.generate("demo", "Give JSON", format="json", options=options).response or "").lstrip()[0] == "{"


def test_options_and_seeds_have_an_effect(client: ollama.Client):
    def text(**options: Any) -> str:
        return client.generate("demo", "Once upon", raw=True, options={"num_predict": 12, **options}).response

    assert text(seed=1, temperature=1.5) == text(seed=1, temperature=1.5) != text(seed=2, temperature=1.5)
    whole = text(temperature=0)
    word = whole.split()[2]
    assert text(temperature=0, stop=[word]) == whole[: whole.index(word)]
    assert text(temperature=0, repeat_penalty=1.0, repeat_last_n=64, num_ctx=2048, num_thread=4, num_keep=5) == whole
    assert text(temperature=0, repeat_penalty=5.0) != whole


def test_log_probabilities_are_those_of_openai(client: ollama.Client, served: Running):
    made = client.chat("demo", QUESTION, options=GREEDY, logprobs=True, top_logprobs=2)
    fields = {"model": "demo", "messages": QUESTION, "max_tokens": 16, "temperature": 0, "logprobs": True,
              "top_logprobs": 2}  # fmt: skip
    wanted = served.ask("/v1/chat/completions", fields).json["choices"][0]["logprobs"]["content"]
    assert made.logprobs is not None
    assert [(one.token, one.logprob) for one in made.logprobs] == [(one["token"], one["logprob"]) for one in wanted]
    assert all(len(one.top_logprobs or ()) == 2 for one in made.logprobs)


def test_models_and_adapters_are_listed_and_shown(client: ollama.Client, served: Running):
    assert [one.model for one in client.list().models] == ["demo", "bard", "coder"]
    assert client.list().models[1].details.parent_model == "demo"  # type: ignore[union-attr]
    shown = client.show("bard")
    assert shown.capabilities and "completion" in shown.capabilities and "insert" not in shown.capabilities
    assert shown.modelinfo and shown.modelinfo["llama.context_length"] == 1024
    client.chat("bard", QUESTION, options={"num_predict": 1})
    assert {"demo", "bard"} <= {one.model for one in client.ps().models}
    assert served.ask("/api/version").json["version"]


def test_vectors_are_those_of_openai(client: ollama.Client, served: Running):
    wanted = [one["embedding"] for one in served.ask("/v1/embeddings", {"input": ["a cat", "b"]}).json["data"]]
    made = client.embed("demo", ["a cat", "b"])
    assert [list(one) for one in made.embeddings] == wanted
    assert made.prompt_eval_count
    assert list(client.embeddings("demo", "a cat").embedding) == wanted[0]
    assert list(client.embed("bard", "a cat").embeddings[0]) != wanted[0]


def test_a_suffix_is_filled_in_where_the_tokenizer_can(tmp_path: Path):
    names = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
    folder = relabelled(tmp_path / "filling", *names, special=True)
    with speaking(names=["demo"], overrides={"model.path": str(folder)}) as served:
        client = ollama.Client(host=served.url)
        assert "insert" in (client.show("demo").capabilities or ())
        made = client.generate("demo", "def f(", suffix="return x", options=GREEDY)
        tokenizer = served.engine.tokenizer
        marks = [tokenizer.encode([name], parse_special=True)[0][1] for name in names]
        head, tail = (tokenizer.encode([text])[0][1:] for text in ("def f(", "return x"))
        ids = [1, marks[0], *head, marks[1], *tail, marks[2]]
        fields = {"prompt": ids, "max_tokens": 16, "temperature": 0}
        assert made.response == served.ask("/v1/completions", fields).json["choices"][0]["text"]
        assert made.prompt_eval_count == len(ids)
        infill = served.ask("/infill", {"input_prefix": "def f(", "input_suffix": "return x", "n_predict": 16,
                                        "temperature": 0})  # fmt: skip
        assert infill.json["content"] == made.response


# ---------------------------------------------------------------------------------------------------------- errors ---


@pytest.mark.parametrize(
    ("given", "status", "said"),
    [
        ({"model": "nobody"}, 404, "'nobody' does not exist"),
        ({"suffix": "x"}, 400, "suffix: the model's tokenizer has no tokens for filling in"),
        ({"images": ["aGk="]}, 400, "images: the model reads texts"),
        ({"template": "{{ .Prompt }}"}, 400, "template: a call brings no template"),
        ({"context": [1, 2]}, 400, "context: no conversation is kept"),
        ({"options": {"num_predict": -3}}, 400, "options.num_predict"),
        ({"options": {"repeat_penalty": 1.2, "repeat_last_n": 64}}, 400, "options.repeat_last_n"),
        ({"options": {"mirostat": 1}}, 400, "mirostat"),
    ],
)
def test_errors_have_the_form_that_the_client_knows(client: ollama.Client, given: Any, status: int, said: str):
    with pytest.raises(ollama.ResponseError) as raised:
        client.generate(**{"model": "demo", "prompt": "Hi", **given})
    assert (raised.value.status_code, said in raised.value.error) == (status, True), raised.value.error


def test_an_unknown_parameter_is_refused_and_a_message_with_an_image_named(served: Running):
    for given, said in (
        ({"modle": "demo"}, "unknown parameter modle"),
        ({"options": {"num_predct": 5}}, "options.num_predct"),
        ({"messages": [{"role": "user", "content": "x", "images": ["aGk="]}]}, "messages[0].images"),
        ({"format": "xml"}, "format"),
    ):
        reply = served.ask("/api/chat", {"model": "demo", "messages": QUESTION, **given})
        assert reply.status == 400
        assert said in reply.json["error"]


def test_a_key_is_asked_for_and_the_clients_header_taken():
    with speaking(names=["demo"], keys=Keys(["right"])) as served:
        with pytest.raises(ollama.ResponseError) as raised:
            ollama.Client(host=served.url).list()
        assert raised.value.status_code == 401
        client = ollama.Client(host=served.url, headers={"Authorization": "Bearer right"})
        assert client.list().models[0].model == "demo"


def test_an_error_in_mid_stream_is_a_line_that_the_client_raises():
    with speaking(names=["demo"], drain_timeout=0.0) as served, slowed(served.engine, 0.05):
        pieces = ollama.Client(host=served.url).generate("demo", "Hi", stream=True, options={"num_predict": 500})
        next(iter(pieces))
        served.server.stop()
        with pytest.raises(ollama.ResponseError, match="shutting down"):
            list(pieces)


def test_a_silent_stream_has_only_lines_of_json():
    with speaking(names=["demo"], stream_keep_alive=0.02) as served, slowed(served.engine, 0.1):
        reply = served.ask("/api/generate", {"model": "demo", "prompt": "Hi", "options": {"num_predict": 3}})
    assert reply.headers["content-type"] == "application/x-ndjson"
    assert all(json.loads(line) for line in reply.data.splitlines())


def test_with_a_journal_lines_stay_json_and_a_repeated_call_gets_the_same_text(tmp_path: Path):
    with speaking(names=["demo"], journal=str(tmp_path)) as served:
        body = {"model": "demo", "prompt": "Once", "raw": True, "options": {"num_predict": 8, "temperature": 1.5}}
        both = [served.ask("/api/generate", body, idempotency_key="one") for _ in range(2)]
        first, second = (list(map(json.loads, reply.data.splitlines())) for reply in both)
        texts = ["".join(line["response"] for line in lines) for lines in (first, second)]
        assert texts[0] == texts[1] != ""
        assert first[0]["created_at"] == second[0]["created_at"]
        assert served.ask("/api/generate", {**body, "prompt": "Twice"}, idempotency_key="one").status == 422
        assert served.ask(f"/v1/streams/{both[0].headers['x-request-id']}").status == 404


# ------------------------------------------------------------------------------------------------ scripted answers ---


def both(context: Context, text: str, **given: Any) -> tuple[Any, list[Any]]:
    """Return the whole answer whose model writes ``text``, and the lines of its stream."""
    known = {"model": "demo", "messages": [{"role": "user", "content": "Hi"}], **given}
    answer, stream = (read_chat(body_of(**known, stream=streams), context) for streams in (False, True))
    events = scripted(context.tokenizer, answer.requests[0].prompt, text)  # type: ignore[arg-type]
    [completion] = [event.completion for event in events if event.completion is not None]
    data = stream.opening()
    for choice, some in batches([events], 3):
        data += stream.frames(choice, some)
    return json.loads(answer.body([completion])), list(map(json.loads, (data + stream.closing()).splitlines()))


def test_reasoning_text_and_whole_calls_are_the_same_in_a_stream(context: Context):
    whole, lines = both(context, SAID + CALLS, tools=TOOLS)
    message = whole["message"]
    assert message["thinking"].startswith("Well,")
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message["tool_calls"]]
    assert calls == [("add", {"a": 1, "b": "x\nü"}), ("sub", {})]
    for name in ("thinking", "content"):
        assert "".join(line["message"].get(name, "") for line in lines) == message[name]
    assert [call for line in lines for call in line["message"].get("tool_calls", ())] == message["tool_calls"]
    assert (whole["done_reason"], lines[-1]["done_reason"]) == ("stop", "stop")


def test_thinking_is_left_out_where_it_is_not_wanted(context: Context):
    whole, lines = both(context, SAID, think=False)
    assert "thinking" not in whole["message"]
    assert not [line for line in lines if "thinking" in line["message"]]
    read_chat(body_of(model="demo", messages=[{"role": "user", "content": "Hi"}], think="high"), context)
    variables = context.template.calls[-1]["variables"]  # type: ignore[attr-defined]
    assert variables == {"reasoning_effort": "high", "enable_thinking": True}


def test_results_of_tools_get_the_ids_of_their_calls(context: Context):
    calls = [{"function": {"name": name, "arguments": {}}} for name in ("add", "sub", "add")]
    turns = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "tool_calls": calls},
        {"role": "tool", "tool_name": "sub", "content": "1"},
        {"role": "tool", "tool_name": "add", "content": "2"},
        {"role": "tool", "content": "3"},
    ]
    read_chat(body_of(model="demo", messages=turns), context)
    said = context.template.calls[-1]["messages"]  # type: ignore[attr-defined]
    ids = [call["id"] for call in said[1]["tool_calls"]]
    assert len(set(ids)) == 3
    assert [message["tool_call_id"] for message in said[2:]] == [ids[1], ids[0], ids[2]]


def test_a_model_needs_a_name(context: Context):
    error: ApiError = refusal(read_generate, context, model="", prompt="Hi")
    assert error.param == "model"
