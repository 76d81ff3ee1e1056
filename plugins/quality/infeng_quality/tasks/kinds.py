"""The tasks: prompts, ends of answers, and their judgement."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

from infeng_core.api import UsageError
from infeng_quality import texts
from infeng_quality.tasks import sandbox


@dataclass(frozen=True)
class Item:
    """One question."""

    name: str
    prompt: str
    gold: str
    """A correct answer, to follow the prompt."""
    judge: Callable[[str], str]
    """Returns "passed", or why an answer is wrong; may take seconds."""


@dataclass(frozen=True)
class Task:
    """A published set of questions."""

    name: str
    keys: tuple[str, ...]
    """Keys of a line of its file whose values are texts."""
    make: Callable[[Mapping[str, Any], str], Item]
    stop: tuple[str, ...]
    max_tokens: int
    runs_code: bool = True
    """Whether answers are programs, which are run to judge them."""


_NUMBER = re.compile(r"-?\$?\d[\d,]*(?:\.\d+)?")


def final_number(text: str) -> Decimal | None:
    """Return the number after the last ``####`` of an answer, or else its last number; None without a number."""
    marked = text.rpartition("####")
    found = _NUMBER.search(marked[2]) if marked[1] else None
    if found is None:
        found = next(reversed(list(_NUMBER.finditer(text))), None)
    if found is None:
        return None
    try:
        return Decimal(found.group().replace(",", "").replace("$", ""))
    except InvalidOperation:
        return None


def gsm8k(line: Mapping[str, Any], where: str) -> Item:
    """Return a question of GSM8K, judged by its final number (Cobbe et al., 2021)."""
    right = final_number(line["answer"])
    if right is None:
        raise UsageError(where, "its answer has no number", "give GSM8K's own file")

    def judge(answer: str) -> str:
        return "passed" if final_number(answer) == right else "wrong"

    return Item(where, f"Question: {line['question']}\nAnswer:", f" {line['answer']}", judge)


def humaneval(line: Mapping[str, Any], where: str) -> Item:
    """Return a problem of HumanEval: the answer completes the function of the prompt (Chen et al., 2021)."""
    entry, setup = line["entry_point"], f"{line['prompt']}    pass\n"  # tests also call helpers of the prompt

    def judge(answer: str) -> str:
        tests = f"{line['test']}\ncheck({entry})\n"
        return sandbox.run(f"{line['prompt']}{answer}\n", tests=tests, setup=setup, entries=(entry,)).reason

    return Item(str(line["task_id"]), line["prompt"], line["canonical_solution"], judge)


def mbpp(line: Mapping[str, Any], where: str) -> Item:
    """Return a problem of MBPP: a program after a docstring of the text and its tests (Austin et al., 2021)."""
    tests = line["test_list"]
    if not isinstance(tests, list) or not all(isinstance(one, str) for one in tests):
        raise UsageError(where, "test_list is no list of texts", "give MBPP's own file")
    shown = "\n".join(tests)
    setup = line.get("test_setup_code") or ""
    entries = _defined(line["code"])

    def judge(answer: str) -> str:
        return sandbox.run(f"{answer}\n", tests=f"{setup}\n{shown}\n", entries=entries).reason

    return Item(
        f"MBPP/{line['task_id']}", f'"""\n{line["text"]}\n{shown}\n"""\n', line["code"].replace("\r", ""), judge
    )


def _defined(code: str) -> frozenset[str]:
    """Return the functions and classes that a correct answer defines; an empty set if it cannot be parsed."""
    try:
        with warnings.catch_warnings(action="ignore"):  # of invalid escapes
            tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError):
        return frozenset()
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef))


TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Task("gsm8k", ("question", "answer"), gsm8k, ("\nQuestion:", "\n\n\n"), 256, runs_code=False),
        Task(
            "humaneval",
            ("prompt", "canonical_solution", "test", "entry_point", "task_id"),
            humaneval,
            ("\nclass ", "\ndef ", "\n#", "\nif ", "\nprint("),
            384,
        ),
        Task("mbpp", ("text", "code"), mbpp, ("\nclass ", "\nassert ", '\n"""', "\nprint(", "\nif "), 384),
    )
}


def items(task: Task, path: str, limit: int | None = None) -> list[Item]:
    """Read the questions of a task's file; raises UsageError naming file and line."""
    text = texts.read_bytes(path).decode("utf-8", errors="replace")
    found = []
    for number, line in texts.lines(text, path)[:limit]:
        where = f"{path}:{number}"
        if not isinstance(line, dict) or not all(isinstance(line.get(key), str) for key in task.keys):
            raise UsageError(where, f"no question of {task.name}", f"a line has {', '.join(task.keys)}")
        try:
            found.append(task.make(line, where))
        except KeyError as error:
            raise UsageError(where, f"no question of {task.name}", f"a line has {error.args[0]}") from None
    if not found:
        raise UsageError(path, "it has no questions", f"give the file of {task.name}")
    return found


def with_shots(questions: Sequence[Item], shots: int) -> list[Item]:
    """Return the questions after the first ``shots``, which precede each with their answers. Raises UsageError."""
    if shots >= len(questions):
        raise UsageError("--shots", f"{shots} of {len(questions)} questions leave none", "give fewer")
    before = "".join(f"{one.prompt}{one.gold}\n\n" for one in questions[:shots])
    return [Item(one.name, before + one.prompt, one.gold, one.judge) for one in questions[shots:]]
