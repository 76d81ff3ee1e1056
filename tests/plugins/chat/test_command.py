"""``infeng chat``: in a pipe, and on a terminal with somebody at it."""

from __future__ import annotations

import io
import json
import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from infeng_chat.contract import Delta
from infeng_chat.talk.command import _defaults
from infeng_chat.talk.conversation import Conversation
from infeng_chat.talk.terminal import Terminal
from infeng_chat.template import find
from infeng_demo import adapter_dir, model_dir

from infeng_core.api import Engine, SamplingParams
from infeng_core.cli import main

CODE = "import sys; from infeng_core.cli import main; sys.exit(main(sys.argv[1:]))"
CHAT = ["chat", str(model_dir()), "-t", "1"]
GREEDY = ["--temperature", "0", "-n", "12"]
QUESTION = "What is 7 times 8?"
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine(model_dir(), threads=1) as made:
        made.adapters.load("bard", adapter_dir("shakespeare"))
        yield made


def answered(engine: Engine, *said: str, system: str = "", adapter: str | None = None) -> list[str]:
    """Return the answers of a conversation, one after the other."""
    template = find(model_dir(), engine.tokenizer)
    messages = [{"role": "system", "content": system}] * bool(system)
    answers = []
    for text in said:
        messages = [*messages, {"role": "user", "content": text}]
        prompt = template.prompt(messages)
        params = SamplingParams(temperature=0.0, max_tokens=12, stop=prompt.stop, stop_token_ids=prompt.stop_token_ids)
        answers.append(engine.generate([prompt.ids], params, adapters=adapter)[0].text)
        messages = [*messages, {"role": "assistant", "content": answers[-1]}]
    return answers


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]) -> Run:
    """Return ``run(option, ..., said=text)``, which gives the exit status, standard output and standard error."""

    def run(*options: str, said: bytes | str) -> tuple[int, str, str]:
        data = said.encode() if isinstance(said, str) else said
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        status = main([*CHAT, *GREEDY, *options])
        out, err = capsysbinary.readouterr()
        return status, out.decode(), err.decode()

    return run


def test_each_line_is_a_turn_and_only_answers_are_on_standard_output(run: Run, engine: Engine) -> None:
    answers = answered(engine, QUESTION, "And 9?")
    assert run(said=f"{QUESTION}\n\nAnd 9?") == (0, "".join(f"{answer}\n" for answer in answers), "")


def test_commands_may_come_between_turns(run: Run, engine: Engine, tmp_path: Path) -> None:
    saved = tmp_path / "saved.json"
    before = f"/system Be terse.\nHi\n/save {saved}\n/reset\n/system\n{QUESTION}\n"
    status, out, err = run(said=f"{before}/load {saved}\nBye\n/stats\n/help\n/quit\nx")
    first, second = answered(engine, "Hi", "Bye", system="Be terse.")
    assert status == 0
    assert out == "".join(f"{answer}\n" for answer in (first, *answered(engine, QUESTION), second))
    assert "3 answers of" in err
    assert "/adapter [NAME]" in err
    document = json.loads(saved.read_text())
    assert document["system"] == "Be terse."
    assert document["messages"] == [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": first}]


def test_the_answering_adapter_can_be_changed(run: Run, engine: Engine) -> None:
    lora = ["--lora", f"bard={adapter_dir('shakespeare')}"]
    said = "The king\n/reset\n/adapter base\nThe king\n/adapter\n"
    [base], [bard] = answered(engine, "The king"), answered(engine, "The king", adapter="bard")
    assert base != bard
    status, out, err = run(*lora, said=said)
    assert (status, out) == (0, f"{bard}\n{base}\n")
    assert err.count("base answers; there are: base, bard") == 2


def test_an_activated_adapter_answers_from_its_invocation_on(run: Run, engine: Engine, tmp_path: Path) -> None:
    """It is invoked by what the template puts before each answer, so it reads the conversation as the base does."""
    prompts = [find(model_dir(), engine.tokenizer).prompt([{"role": "user", "content": text}]).ids for text in "ab"]
    same = [first == second for first, second in zip(prompts[0][::-1], prompts[1][::-1], strict=False)].index(False)
    path = Path(shutil.copytree(adapter_dir("shakespeare"), tmp_path / "judge")) / "adapter_config.json"
    invocation = [int(token) for token in prompts[0][-same:]]
    path.write_text(json.dumps(json.loads(path.read_text()) | {"alora_invocation_tokens": invocation}))
    engine.adapters.load("judge", str(path.parent))
    try:
        said = ("The king", "And then?")
        expected = answered(engine, *said, adapter="judge")
        assert expected not in (answered(engine, *said), answered(engine, *said, adapter="bard"))
    finally:
        engine.adapters.unload("judge")
    status, out, _ = run("--lora", f"judge={path.parent}", said="\n".join(said))
    assert (status, out) == (0, "".join(f"{answer}\n" for answer in expected))


@pytest.mark.slow
def test_another_template_and_a_continued_line_are_accepted(run: Run, engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "t.jinja").write_text("{{ x }}{% for m in messages %}{{ m.content | trim }}{% endfor %}")
    variables = ["--chat-template-kwargs", '{"x": "Once upon "}']
    _, out, _ = run("--template", str(tmp_path / "t.jinja"), *variables, said="a \\\n\ttime")
    params = SamplingParams(temperature=0.0, max_tokens=12)
    assert out == engine.generate("Once upon a \n\ttime", params)[0].text + "\n"


def test_an_error_is_printed_and_the_next_line_answered(run: Run, engine: Engine, tmp_path: Path) -> None:
    wrong = {
        b"/adapter nobody": "nobody: it is not loaded",
        b"/load /no/such/file": "no such file",
        b"/load ~nouser/x": "no such user",
        b"/save": "none is named",
        b"/save /no/such/folder/x": "cannot be written",
        b"/unheard of": "it is not a command",
        b"\xff": "not UTF-8",
        b"word " * 3000: "the context is 1024 tokens",
    }
    for number, content in enumerate(("[5]", '{"messages": [{"role": "system", "content": "x"}]}', "{", '{"a": 1}')):
        (tmp_path / str(number)).write_text(content)
        wrong[f"/load {tmp_path}/{number}".encode()] = f"{tmp_path}/{number}"
    status, out, err = run(said=b"".join(line + b"\n" for line in (*wrong, b"Hi")))
    assert status == 1
    assert out == f"{answered(engine, 'Hi')[0]}\n"
    for line, why in zip(err.splitlines(), wrong.values(), strict=True):
        assert line.startswith("infeng: error: ")
        assert why in line


@pytest.mark.parametrize("variables", ["[]", "{"])
def test_variables_must_be_an_object(variables: str, run: Run) -> None:
    status, _, err = run("--chat-template-kwargs", variables, said="")
    assert status == 2
    assert "--chat-template-kwargs" in err


def test_sampling_defaults_to_the_models_recommendation(tmp_path: Path) -> None:
    path = tmp_path / "generation_config.json"
    assert _defaults(tmp_path) == {}
    path.write_text('{"temperature": 0.6, "top_k": 20, "eos_token_id": 1, "top_p": null}')
    assert _defaults(tmp_path) == {"temperature": 0.6, "top_k": 20}
    path.write_text('{"do_sample": false, "temperature": 0.6}')
    assert _defaults(tmp_path) == {"temperature": 0.0}


class Person:
    """Somebody at a terminal."""

    def __init__(self, *options: str) -> None:
        """Start the command."""
        self._screen, other = pty.openpty()
        environment = {**os.environ, "TERM": "xterm"}
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", CODE, *CHAT, *options],
            stdin=other,
            stdout=other,
            stderr=other,
            start_new_session=True,
            env=environment,
        )
        os.close(other)
        self.seen = ""

    def type(self, text: str) -> None:
        """Type."""
        os.write(self._screen, text.encode())

    def interrupt(self) -> None:
        """Press Ctrl-C."""
        os.killpg(self.process.pid, signal.SIGINT)

    def interrupt_until(self, text: str) -> None:
        """Press Ctrl-C until ``text`` comes: readline may miss one just before it waits for a key."""
        for _ in range(12):
            self.interrupt()
            deadline = time.monotonic() + 5
            while text not in self.seen and time.monotonic() < deadline:
                self._read()
            if text in self.seen:
                break
        self.wait_for(text)

    def wait_for(self, text: str) -> str:
        """Return what came up to ``text``."""
        deadline = time.monotonic() + 60
        while text not in self.seen:
            assert time.monotonic() < deadline, self.seen
            self._read()
        before, _, self.seen = self.seen.partition(text)
        return before

    def _read(self) -> None:
        if select.select([self._screen], [], [], 0.2)[0]:
            self.seen += os.read(self._screen, 4096).decode(errors="replace")

    def end(self) -> int:
        """Return the exit status."""
        deadline = time.monotonic() + 60
        while self.process.poll() is None and time.monotonic() < deadline:
            if select.select([self._screen], [], [], 0.1)[0]:
                try:
                    os.read(self._screen, 4096)
                except OSError:  # the other side is closed
                    break
        return self.process.wait(60)


@pytest.mark.slow
def test_a_conversation_works_on_a_terminal(engine: Engine, tmp_path: Path) -> None:
    person = Person("--temperature", "0", "-n", "900", "--ignore-eos")
    person.wait_for("/help shows commands.")
    person.wait_for("> ")
    person.type("What is 7 times 9?\x7f\x7f8?\n")  # with a correction
    person.wait_for("8?\r\n")
    person.wait_for(" ")
    person.interrupt()  # in the answer
    person.wait_for("\r\n> ")
    person.type("/stats\n")
    person.wait_for("2 messages")
    person.wait_for("> ")
    person.type("\x1b[A\x1b[A")  # the line before
    person.wait_for(QUESTION)
    person.interrupt_until("> ")
    person.type(f"/save {tmp_path}/x.json\n")
    person.wait_for("\r\n> ")
    person.type("\x04")
    assert person.end() == 0
    assert json.loads((tmp_path / "x.json").read_text())["messages"][0]["content"] == QUESTION


def test_ctrl_c_ends_an_answer_and_not_the_program(engine: Engine) -> None:
    shown: list[str] = []

    def show(delta: Delta) -> None:
        shown.append(delta.content)
        if len(shown) == 3:
            raise KeyboardInterrupt

    engine.start()
    params = SamplingParams(temperature=0.0, max_tokens=900, ignore_eos=True)
    talk = Conversation(engine, find(model_dir(), engine.tokenizer), params)
    talk.say("Tell a long story", show)
    engine.stop()
    assert talk.answers[0].finish_reason == "cancelled"
    assert [message["role"] for message in talk.messages] == ["user", "assistant"]
    assert talk.messages[1]["content"] == "".join(shown)


def test_reasoning_is_dim_and_control_characters_do_not_reach_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    for is_terminal in (True, False):
        monkeypatch.setattr(sys.stdout, "isatty", lambda answer=is_terminal: answer)
        terminal = Terminal()
        for delta in (Delta(reasoning="Hm"), Delta(content="So\x1b[31m\x07")):
            terminal.show(delta)
        terminal.end()
        out, err = capsysbinary.readouterr()
        dim, said = b"\x1b[2mHm\x1b[0m\n\n", "So\ufffd[31m\ufffd\n".encode()
        assert (out, err) == ((dim + said, b"") if is_terminal else (b"So\x1b[31m\x07\n", b"Hm"))


def test_every_answer_respects_the_options_of_other_plugins(run: Run) -> None:
    pytest.importorskip("infeng_grammar", reason="the wheel with these options is not installed")
    status, out, _ = run("--choice", "maybe", "--choice", "never", "--seed", "1", said=f"{QUESTION}\nWhy?\n")
    assert status == 0
    assert {line.strip() for line in out.splitlines() if line.strip()} <= {"maybe", "never"} and out.strip()
