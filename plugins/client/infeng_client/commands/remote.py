"""``infeng run --server``: the same options, handed to the command `ask`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from typing import Any

from infeng_core.api import RunOptions, UsageError
from infeng_core.api.servers import Parser, request_fields

SENT = ("echo", "json", "api_key")
"""Options that both commands share besides sampling options."""
LOCAL = ("threads", "format", "context", "ids", "speculate", "profile", "adapter")
"""Options that only apply to a local engine."""


class _Server(argparse.Action):
    """The option ``--server URL``, which makes MODEL optional."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, *_: Any) -> None:
        """Store the address."""
        namespace.server = values
        if isinstance(parser, Parser) and parser.model is not None:
            parser.model.required = False


class ServerOptions(RunOptions):
    """``--server`` and ``--api-key`` of the command ``run``."""

    def add(self, parser: argparse.ArgumentParser, command: str) -> None:
        """Add the options to `run` only: `ask` always has a server, and `chat` runs a local engine."""
        if command != "run":
            return
        group = parser.add_argument_group("server")
        text = "let a server answer; MODEL, or --lora NAME, is then the name of one of its models and may be left out"
        group.add_argument("--server", metavar="URL", action=_Server, help=text)
        group.add_argument("--api-key", metavar="KEY", help="key of the server (default: INFENG_API_KEY)")

    def run(self, arguments: argparse.Namespace, prompts: Callable[[], Sequence[str]]) -> int | None:
        """Answer with the server if one is named; raises UsageError for options of a local engine."""
        if arguments.server is None:
            return None
        if not any((arguments.text, arguments.prompt, arguments.file, arguments.ids)):
            arguments.text = [arguments.model] if arguments.model else []  # a single positional argument is the prompt
            arguments.model = None
        for name in LOCAL:
            if getattr(arguments, name):
                raise UsageError(
                    f"--{name.replace('_', '-')}", "with --server the engine is the server's", "leave it out"
                )
        from infeng_client.commands.ask import Ask  # imports httpx, which other runs do not need

        command, parser = Ask(), Parser(prog="infeng ask")
        command.configure(parser)
        return command.run(parser.parse_args(words(arguments, prompts())))


def words(arguments: argparse.Namespace, prompts: Sequence[str]) -> list[str]:
    """Return the arguments of ``infeng ask`` equivalent to those of ``infeng run``."""
    found = [arguments.server, "--raw", *(f"--prompt={text}" for text in prompts)]
    for name in SENT:
        value = getattr(arguments, name)
        option = f"--{name.replace('_', '-')}"
        found += [option] if value is True else [f"{option}={value}"] if value else []
    found += [f"--model={name}" for name in _model(arguments)]
    return [*found, *(f"--field={name}={json.dumps(value)}" for name, value in request_fields(arguments).items())]


def _model(arguments: argparse.Namespace) -> list[str]:
    """Return the name of the model or adapter, if one is given."""
    if len(arguments.lora) > 1:
        raise UsageError("--lora", "a server answers with one model", "give one name")
    for name in arguments.lora:
        if "=" in name:
            raise UsageError(f"--lora {name}", "a server has adapters of its own", "give the name alone: --lora poet")
    return arguments.lora or ([arguments.model] if arguments.model else [])
