"""`infeng ask`: streams a server's answers to stdout. `infeng run --server` passes its options to it."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from itertools import count
from textwrap import shorten
from typing import Any

from infeng_client.calls import Prompt
from infeng_client.client import Client
from infeng_client.commands.server import add_server, client_of, explained
from infeng_client.errors import ApiError
from infeng_client.results import Completion
from infeng_core.api import UsageError, say
from infeng_core.api.servers import add_sampling_options, emit, request_fields

MAX_PROMPT_BYTES = 16 << 20


class Ask:
    """The command."""

    name = "ask"
    help = "put a question to a model on a server"
    takes_run_options = True

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments."""
        add_server(parser)
        parser.add_argument("stdin", nargs="?", metavar="-", help="read the question from stdin")
        parser.add_argument("-p", "--prompt", action="append", metavar="TEXT", help="question; repeats, all at once")
        parser.add_argument("--raw", action="store_true", help="complete the text as it stands, no chat template")
        parser.add_argument("--system", metavar="TEXT", help="what the model is told before the question")
        parser.add_argument("-m", "--model", metavar="NAME", help="model or adapter (default: the server's base)")
        parser.add_argument("--echo", action="store_true", help="print the question before its answer")
        parser.add_argument("--json", action="store_true", help="print one JSON object (a list for several questions)")
        add_sampling_options(parser, None)
        text = "a further field of the request, such as priority=4; repeats"
        parser.add_argument("--field", action="append", default=[], metavar="NAME=JSON", help=text)

    def run(self, arguments: argparse.Namespace) -> int:
        """Print the answers; raises InfengError, and KeyboardInterrupt on Ctrl-C, which cancels the calls."""
        prompts = questions(arguments)
        if arguments.raw and arguments.system is not None:
            raise UsageError("--system", "--raw completes a text, which has no roles", "leave out one of the two")
        with client_of(arguments) as client:
            try:
                (show_json if arguments.json else show_text)(client, prompts, arguments)
            except ApiError as error:
                raise explained(error, client.base_url) from error
        return 0


def questions(arguments: argparse.Namespace) -> list[str]:
    """Return the prompts; raises UsageError unless they come from exactly one source."""
    if arguments.stdin not in (None, "-"):  # no choice of argparse, which would complain of it before unknown options
        raise UsageError(arguments.stdin, "it is neither an option nor -", "give -p TEXT or - (standard input)")
    if bool(arguments.prompt) == bool(arguments.stdin):
        why = "-p and - exclude each other" if arguments.stdin else "none is given"
        raise UsageError("prompt", why, "give -p TEXT or - (standard input)")
    if arguments.prompt:
        return list(arguments.prompt)
    data = b"" if sys.stdin is None else sys.stdin.buffer.read(MAX_PROMPT_BYTES + 1)
    if len(data) > MAX_PROMPT_BYTES:
        raise UsageError("standard input", f"it has more than {MAX_PROMPT_BYTES} bytes", "give a shorter prompt")
    return [data.decode("utf-8", "replace")]


def parameters(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of the request body that the options set."""
    given = request_fields(arguments)
    given |= {"model": arguments.model} if arguments.model else {}
    return given | dict(map(field, arguments.field))


def field(text: str) -> tuple[str, Any]:
    """Parse ``NAME=JSON`` to a name and a value; raises UsageError."""
    name, _, value = text.partition("=")
    try:
        return name, json.loads(value)
    except (ValueError, RecursionError):
        raise UsageError(f"--field {text}", "it is not NAME=JSON", "write --field priority=4, user='\"me\"'") from None


def messages(prompt: str, system: str | None) -> list[dict[str, str]]:
    """Return a question as messages."""
    before = [] if system is None else [{"role": "system", "content": system}]
    return [*before, {"role": "user", "content": prompt}]


def show_text(client: Client, prompts: list[str], arguments: argparse.Namespace) -> None:
    """Stream one answer to stdout, or print several in the order of their prompts, each on a separate line.

    With several, a label on standard error precedes each answer.
    """
    if len(prompts) > 1:
        numbered = zip(count(1), prompts, answers(client, prompts, arguments), strict=False)
        for number, prompt, answer in numbered:
            say(f"[{number}] {shorten(prompt, 60, placeholder='...')}".rstrip(), to_stderr=True)
            emit((prompt if arguments.echo else "") + answer.text + "\n")
        return
    params = parameters(arguments)
    if arguments.raw:
        stream = client.stream(prompts[0], **params)
    else:
        stream = client.stream_chat(messages(prompts[0], arguments.system), **params)
    with stream:
        if arguments.echo:
            emit(prompts[0])
        for chunk in stream:
            emit(chunk.text)
    if sys.stdout.isatty():
        emit("\n")
    if stream.resumes:
        say(f"the connection broke {stream.resumes} times; the answer was resumed", to_stderr=True)


def show_json(client: Client, prompts: list[str], arguments: argparse.Namespace) -> None:
    """Print the answers with all their data as JSON."""
    facts = [
        as_json(answer, prompt if arguments.echo else "")
        for prompt, answer in zip(prompts, answers(client, prompts, arguments), strict=True)
    ]
    emit(json.dumps(facts[0] if len(facts) == 1 else facts, ensure_ascii=False, indent=2) + "\n")


def answers(client: Client, prompts: list[str], arguments: argparse.Namespace) -> Iterator[Completion]:
    """Yield the answers in order; raises the first error among them."""
    params = parameters(arguments)
    if arguments.raw:
        texts: list[Prompt] = list(prompts)
        results = client.complete_many(texts, **params)
    else:
        results = client.chat_many([messages(prompt, arguments.system) for prompt in prompts], **params)
    for result in results:
        if isinstance(result, ApiError):
            raise result
        yield result


def as_json(answer: Completion, before: str) -> dict[str, Any]:
    """Return an answer as plain data."""
    usage = answer.usage
    counts = ("prompt_tokens", "completion_tokens", "total_tokens", "cached_tokens")
    return {
        "text": before + answer.text,
        "reasoning": answer.reasoning,
        "finish_reason": answer.finish_reason,
        "model": answer.model,
        "id": answer.id,
        "usage": None if usage is None else {name: getattr(usage, name) for name in counts},
    }
