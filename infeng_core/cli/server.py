"""``infeng run --server``: the same options, handed to the command `ask`, which a plugin brings."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

from infeng_core.cli.generation import sampling_fields
from infeng_core.cli.options import config_from
from infeng_core.cli.parser import Parser
from infeng_core.cli.structured import named_processors, structure_of
from infeng_core.errors import UsageError

COMMAND = "ask"
SENT = ("echo", "json", "api_key")
"""Options that both commands have beside those of sampling."""
LOCAL = ("threads", "format", "context", "ids", "speculate", "profile", "adapter")
"""Options of an engine of one's own."""


class Server(argparse.Action):
    """``--server URL``, with which MODEL may be left out."""

    model: argparse.Action

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, *_: Any) -> None:
        """Take the address."""
        namespace.server = values
        self.model.required = False


def add_server_options(parser: argparse.ArgumentParser, model: argparse.Action) -> None:
    """Add ``--server`` and ``--api-key``. model: the positional argument."""
    group = parser.add_argument_group("server")
    text = "let a server answer; MODEL, or --lora NAME, is then the name of one of its models and may be left out"
    action = group.add_argument("--server", metavar="URL", action=Server, help=text)
    assert isinstance(action, Server)
    action.model = model
    group.add_argument("--api-key", metavar="KEY", help="key of the server (default: INFENG_API_KEY)")


def run_on_server(arguments: argparse.Namespace, read_prompts: Callable[[argparse.Namespace], list[str]]) -> int:
    """Let the command `ask` do it; raises UsageError for options that the server decides, or without that command."""
    if not any((arguments.text, arguments.prompt, arguments.file, arguments.ids)):
        arguments.model, arguments.text = None, arguments.model  # a single word is the prompt
    for name in LOCAL:
        if getattr(arguments, name):
            raise UsageError(f"--{name.replace('_', '-')}", "with --server the engine is the server's", "leave it out")
    words = [arguments.server, "--raw", *(f"--prompt={text}" for text in read_prompts(arguments))]
    for name in SENT:
        value = getattr(arguments, name)
        option = f"--{name.replace('_', '-')}"
        words += [option] if value is True else [f"{option}={value}"] if value else []
    words += [f"--model={name}" for name in _model(arguments)]
    for fields in [sampling_fields(arguments), *_structures(arguments)]:
        words += [f"--field={name}={json.dumps(value)}" for name, value in fields.items()]

    from infeng_core.plug.manager import Plugins

    plugins = Plugins.discover(config_from(arguments))
    if COMMAND not in plugins.commands():
        raise UsageError("--server", "no plugin here speaks to servers", "pip install infeng-client")
    command = plugins.command(COMMAND)
    parser = Parser(prog=f"infeng {COMMAND}")
    command.configure(parser)
    return command.run(parser.parse_args(words))


def _structures(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Return what the answer must be, as fields of a request, if an option says it."""
    names = {"json_schema": "json", "regex": "regex", "choice": "choice", "lark": "grammar"}
    wanted = [argument for _, argument in structure_of(arguments)]
    named = named_processors(arguments)
    return [{"logit_processors": named}] * bool(named) + [
        {"grammar": argument["gbnf"]}
        if "gbnf" in argument
        else {"structured_outputs": {names[key]: value for key, value in argument.items()}}
        for argument in wanted
    ]


def _model(arguments: argparse.Namespace) -> list[str]:
    """Return the name of who answers, if one is given."""
    if len(arguments.lora) > 1:
        raise UsageError("--lora", "a server answers with one model", "give one name")
    for name in arguments.lora:
        if "=" in name:
            raise UsageError(f"--lora {name}", "a server has adapters of its own", "give the name alone: --lora poet")
    return arguments.lora or ([arguments.model] if arguments.model else [])
