"""Prompts with given answers, to measure drafts on: edits of programs, an agent's calls of tools, prose.

The answers are given, so that figures depend on the text and not on how well a model writes. Programs and prose come
from the user's folder (``prompts.SETS``); changes and calls are made by a seed. Each function is used once, so no
answer but the call of a test comes twice.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from infeng_bench.load import prompts
from infeng_core.api import UsageError


@dataclass(frozen=True)
class Turn:
    """A request: its whole prompt, with earlier turns of the conversation, and the answer."""

    prompt: str
    answer: str


Conversation = Sequence[Turn]
"""Turns, one after the other."""

PROGRAMS = 3
"""Functions of one program."""

SYSTEM = "You are a coding agent. Call one tool at a time, as JSON.\nTools: read_file, edit_file, run_tests.\n"


def edits(folder: str | None, seed: int) -> Iterator[Conversation]:
    """Yield tasks to change a program: the prompt has it, and the answer repeats it with a few changes."""
    for number, functions in enumerate(_programs(folder, seed)):
        drawn = random.Random(f"{seed} {number}")
        old = "\n\n".join(functions)
        task, new = _changed(old, drawn)
        yield [Turn(f"Here is a program.\n\n{old}\n\n{task} Write the whole program.\n\n", new)]


def agents(folder: str | None, seed: int) -> Iterator[Conversation]:
    """Yield conversations of an agent that reads files, edits and tests them; its answers are a sentence and a call."""
    for number, functions in enumerate(_programs(folder, seed)):
        drawn = random.Random(f"{seed} {number}")
        yield _conversation(number, functions, drawn)


def prose(folder: str | None, seed: int) -> Iterator[Conversation]:
    """Yield paragraphs: the prompt is the beginning, the answer the rest."""
    paragraphs = [line for line in prompts.lines("prose", folder) if len(line) > 600 and not line.startswith("=")]
    random.Random(seed).shuffle(paragraphs)
    for paragraph in paragraphs:
        cut = paragraph.index(" ", 200)
        yield [Turn(paragraph[:cut], paragraph[cut:1600])]


TEXTS: Mapping[str, Callable[[str | None, int], Iterator[Conversation]]] = {
    "edits": edits,
    "agents": agents,
    "prose": prose,
}
"""Makers of conversations by name, each called with the folder of the data and a seed."""


def _programs(folder: str | None, seed: int) -> Iterator[list[str]]:
    """Yield groups of ``PROGRAMS`` functions, each function once."""
    found = []
    for name, make in (("humaneval", _of_humaneval), ("mbpp", _of_mbpp)):
        for number, line in enumerate(prompts.lines(name, folder), 1):
            try:
                found.append(make(json.loads(line)))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise UsageError(f"{name}:{number}", f"is no program ({error!r})", "download the set again") from None
    random.Random(seed).shuffle(found)
    for begin in range(0, len(found) - PROGRAMS + 1, PROGRAMS):
        yield found[begin : begin + PROGRAMS]


def _of_humaneval(data: Any) -> str:
    return f"{data['prompt'].rstrip()}\n{data['canonical_solution'].rstrip()}\n"


def _of_mbpp(data: Any) -> str:
    code: str = data["code"]
    return code.replace("\r\n", "\n").rstrip() + "\n"


def _changed(program: str, drawn: random.Random) -> tuple[str, str]:
    """Return a task and the program after it: a function has another name, and some lines are new or changed."""
    names = re.findall(r"^def (\w+)", program, re.M)
    name = drawn.choice(names) if names else "main"
    other = f"{name}_{drawn.choice(['checked', 'safe', 'v2', 'fast', 'strict'])}"
    lines = re.sub(rf"\b{re.escape(name)}\b", other, program).split("\n")
    for _ in range(2):
        at = drawn.randrange(len(lines))
        indent = re.match(r" *", lines[at])
        assert indent is not None
        lines.insert(at, f"{indent[0]}# {drawn.choice(['checked by hand', 'see the tests', 'bounds are closed'])}")
    return f"Rename `{name}` to `{other}`, and comment what is not clear.", "\n".join(lines)


def _conversation(number: int, functions: Sequence[str], drawn: random.Random) -> Conversation:
    path = f"src/{drawn.choice(['core', 'util', 'text', 'data'])}/part_{number:03}.py"
    talk = f"{SYSTEM}\nUser: fix {path}.\n"
    turns: list[Turn] = []

    def say(sentence: str, name: str, arguments: Mapping[str, Any], result: str) -> None:
        nonlocal talk
        answer = f"{sentence}\n{json.dumps({'tool': name, 'arguments': arguments}, indent=1)}\n"
        turns.append(Turn(f"{talk}Agent: ", answer))
        talk += f"Agent: {answer}Result: {result}\n"

    text = "\n\n".join(functions)
    say(f"I look at {path} first.", "read_file", {"path": path, "first_line": 1, "last_line": 200}, text)
    for function in functions:
        _, new = _changed(function, drawn)
        edit = {"path": path, "old_text": function, "new_text": new}
        say("I change one function.", "edit_file", edit, '{"ok": true, "replaced": 1}')
        tests = {"path": f"tests/test_part_{number:03}.py", "timeout_seconds": 60}
        say("I run the tests after this change.", "run_tests", tests, f'{{"passed": {drawn.randrange(3, 40)}}}')
    return turns
