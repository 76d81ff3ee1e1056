"""`infeng ask`, and `infeng run --server`, which is the same with the options of `run`."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from fake_openai import PIECES, FakeServer, Refusal

pytest.importorskip("infeng_client", reason="the client wheel is not installed")

from infeng_core.cli import main

ANSWER = "".join(PIECES)
Capture = pytest.CaptureFixture[bytes]


def test_the_answer_alone_is_on_stdout(server: FakeServer, capsysbinary: Capture):
    for words in (["ask", server.url], ["ask", server.url, "--raw"], ["run", "--server", server.url]):
        assert main([*words, "-p", "Sag: "]) == 0
        out, err = capsysbinary.readouterr()
        assert (out.decode(), err) == (f"Sag: {ANSWER}", b"")
    assert [path for path in server.paths() if path.endswith("ions")] == [
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/completions",
    ]


def test_the_options_of_run_are_sent(server: FakeServer, capsysbinary: Capture):
    options = ["-n", "7", "--temperature", "0", "--top-k", "3", "--top-p", "0.5", "--min-p", "0.1", "--seed", "0",
               "--stop", "a", "--stop", "b", "--ignore-eos", "--lora", "poet", "--api-key", "k", "--echo"]  # fmt: skip
    assert main(["run", "--server", server.url, "--prompt=--x=1", *options]) == 0
    assert capsysbinary.readouterr().out.decode() == f"--x=1--x=1{ANSWER}"
    (seen,) = server.seen
    sent = {key: value for key, value in seen.body.items() if key not in ("stream", "stream_options")}
    assert sent == {"prompt": "--x=1", "max_tokens": 7, "temperature": 0.0, "top_k": 3, "top_p": 0.5, "min_p": 0.1,
                    "seed": 0, "stop": ["a", "b"], "ignore_eos": True, "model": "poet"}  # fmt: skip
    assert seen.headers["authorization"] == "Bearer k"


def test_constraints_are_sent_too(server: FakeServer, tmp_path: Path):
    (tmp_path / "a.lark").write_text('start: "a"')
    (tmp_path / "a.gbnf").write_text('root ::= "a"')
    for words, wanted in (
        (["--json-schema", '{"type": "object"}'], {"json": {"type": "object"}}),
        (["--regex", "a|b=c"], {"regex": "a|b=c"}),
        (["--choice", "yes", "--choice", "no"], {"choice": ["yes", "no"]}),
        (["--grammar", str(tmp_path / "a.lark")], {"grammar": 'start: "a"'}),
    ):
        assert main(["run", "--server", server.url, "-p", "x", *words]) == 0
        assert server.seen[-1].body["structured_outputs"] == wanted
    assert main(["run", "--server", server.url, "-p", "x", "--grammar", str(tmp_path / "a.gbnf")]) == 0
    assert server.seen[-1].body["grammar"] == 'root ::= "a"'
    assert main(["ask", server.url, "-p", "x", "--field", "min_tokens=4"]) == 0
    assert server.seen[-1].body["min_tokens"] == 4
    assert main(["ask", server.url, "-p", "x", "--field", "min_tokens"]) == 2


def test_options_that_are_not_given_are_not_sent(server: FakeServer, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("INFENG_API_KEY", "of the environment")
    assert main(["run", "--server", server.url, "some-model", "-p", "x"]) == 0
    (seen,) = server.seen
    assert seen.body.keys() - {"stream", "stream_options"} == {"prompt", "model"}
    assert seen.body["model"] == "some-model"
    assert seen.headers["authorization"] == "Bearer of the environment"


def test_several_prompts_are_printed_in_their_order(server: FakeServer, capsysbinary: Capture):
    assert main(["run", "--server", server.url, "-p", "1 ", "-p", "2 "]) == 0
    assert capsysbinary.readouterr().out.decode() == f"1 {ANSWER}\n2 {ANSWER}\n"


def test_json_output_has_all_data(server: FakeServer, capsysbinary: Capture):
    assert main(["run", "--server", server.url, "-p", "1 ", "--json"]) == 0
    facts = json.loads(capsysbinary.readouterr().out)
    assert (facts["text"], facts["finish_reason"], facts["model"]) == (f"1 {ANSWER}", "stop", "base")
    assert facts["usage"]["prompt_tokens"] == 3
    assert main(["ask", server.url, "-p", "1 ", "-p", "2 ", "--json", "--system", "Be brief."]) == 0
    assert [facts["text"] for facts in json.loads(capsysbinary.readouterr().out)] == [f"1 {ANSWER}", f"2 {ANSWER}"]
    assert {seen.body["messages"][0]["content"] for seen in server.seen[1:]} == {"Be brief."}


def test_a_prompt_may_come_from_standard_input(
    server: FakeServer, capsysbinary: Capture, monkeypatch: pytest.MonkeyPatch
):
    for words in (["run", "--server", server.url, "-"], ["run", "-", "--server", server.url], ["ask", server.url, "-"],
                  ["run", "--server", server.url, "base", "-"]):  # fmt: skip
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("né ".encode())))
        assert main(words) == 0
        assert capsysbinary.readouterr().out.decode() == f"né {ANSWER}"


def test_a_resumed_stream_is_reported_on_stderr(server: FakeServer, capsysbinary: Capture):
    server.cuts.append(700)
    assert main(["ask", server.url, "-p", "Sag: "]) == 0
    out, err = capsysbinary.readouterr()
    assert out.decode() == f"Sag: {ANSWER}"
    assert b"broke" in err


@pytest.mark.parametrize(
    ("refusal", "status", "said"),
    [
        (Refusal(401, {}, {"error": {"message": "wrong key"}}), 1, b"wrong key: give --api-key"),
        (Refusal(404, {}, {"error": {"message": "no model poet"}}), 1, b"no model poet: see what there is"),
        (Refusal(400, {}, {"error": {"message": "top_p: 7 is too large"}}), 2, b"top_p: 7 is too large"),
        (Refusal(500), 1, b"status 500"),
    ],
)
def test_errors_are_one_line_with_a_remedy(
    server: FakeServer, capsysbinary: Capture, refusal: Refusal, status: int, said: bytes
):
    server.refusals.append(refusal)
    assert main(["run", "--server", server.url, "-p", "x"]) == status
    out, err = capsysbinary.readouterr()
    assert out == b""
    assert err.startswith(b"infeng: error: http://127.0.0.1:")
    assert said in err
    assert err.count(b"\n") == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--threads", "2"], b"--threads: with --server"),
        (["--ids", "1 2"], b"--ids: with --server"),
        (["--lora", "poet=path"], b"give the name alone"),
        (["--lora", "a", "--lora", "b"], b"answers with one model"),
    ],
)
def test_options_of_a_local_engine_are_refused(
    server: FakeServer, capsysbinary: Capture, words: list[str], said: bytes
):
    assert main(["run", "--server", server.url, "-p", "x", *words]) == 2
    assert said in capsysbinary.readouterr().err
    assert server.seen == []


def test_a_wrong_address_is_a_usage_error(capsysbinary: Capture):
    assert main(["ask", "localhost:8000", "-p", "x"]) == 2
    assert b"not an address of a server" in capsysbinary.readouterr().err


def test_without_a_server_the_model_is_still_needed(capsysbinary: Capture):
    with pytest.raises(SystemExit) as caught:
        main(["run", "-p", "x"])
    assert caught.value.code == 2
    assert b"MODEL" in capsysbinary.readouterr().err


def test_ask_takes_the_options_of_other_plugins_too(server: FakeServer):
    pytest.importorskip("infeng_grammar", reason="the wheel with these options is not installed")
    assert main(["ask", server.url, "-p", "x", "--regex", "a+", "--logit-processor", 'choice=["a"]']) == 0
    assert server.seen[-1].body["structured_outputs"] == {"regex": "a+"}
    assert server.seen[-1].body["logit_processors"] == {"choice": ["a"]}


def test_several_answers_are_labelled_on_stderr(server: FakeServer, capsysbinary: Capture):
    assert main(["ask", server.url, "-p", "Sag: ", "-p", "Nun: ", "--raw"]) == 0
    out, err = capsysbinary.readouterr()
    assert out.decode() == f"Sag: {ANSWER}\nNun: {ANSWER}\n"
    assert [line for line in err.decode().splitlines() if line.startswith("[")] == ["[1] Sag:", "[2] Nun:"]


def test_without_the_plugin_the_remedy_is_its_name(capsysbinary: Capture, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("INFENG_PLUGINS_DISABLE", "client")
    assert main(["run", "--server", "http://127.0.0.1:9", "-p", "x"]) == 2
    assert b"pip install infeng-client" in capsysbinary.readouterr().err


def test_the_client_runs_without_the_engine(server: FakeServer):
    code = (
        "import sys; sys.modules['infeng_core'] = None; import infeng_client\n"
        f"with infeng_client.Client({server.url!r}) as client: print(client.complete('x').text)"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, timeout=60)
    assert done.stderr == b""
    assert done.stdout.decode().strip() == f"x{ANSWER}".strip()
