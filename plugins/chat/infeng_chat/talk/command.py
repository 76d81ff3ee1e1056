"""``infeng chat MODEL``: a chat in the terminal. Answers go to standard output, everything else to standard error."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from infeng_processors.api import drop_bad_words

from infeng_core.api import UsageError, add_config_options, config_from, read_json
from infeng_core.api.servers import (
    adapters_of,
    add_lora_options,
    add_model,
    add_model_options,
    add_sampling_options,
    loras,
    model_options,
    processors_of,
    sampling_params,
)

MOST_TOKENS = 1024
_DEFAULTS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")


class Chat:
    """The command."""

    name = "chat"
    help = "talk with a model"
    takes_run_options = True

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments."""
        add_model(parser)
        parser.add_argument("--system", metavar="TEXT", help="system message")
        parser.add_argument(
            "--chat-template", "--template", metavar="FILE", type=Path, help="a Jinja template instead of the model's"
        )
        parser.add_argument(
            "--chat-template-kwargs",
            metavar="JSON",
            default="{}",
            help="variables for it: '{\"enable_thinking\": false}'",
        )
        add_model_options(parser)
        add_lora_options(parser)
        add_sampling_options(parser, MOST_TOKENS, _DEFAULTS)
        add_config_options(parser)

    def run(self, arguments: argparse.Namespace) -> int:
        """Load the model and talk until the input ends; raises InfengError."""
        variables, processors = _variables(arguments.chat_template_kwargs), processors_of(arguments)
        adapters_of(arguments, 1)
        config = config_from(arguments, **model_options(arguments))
        from infeng_chat.talk.conversation import Conversation
        from infeng_chat.talk.loop import Loop
        from infeng_chat.talk.terminal import Terminal
        from infeng_chat.template import find
        from infeng_core.api import Engine

        with Engine(config=config) as engine:
            for name, path, scale in loras(arguments):
                engine.adapters.load(name, path, scale=scale)
            directory = engine.model.tokenizer_dir
            template = find(directory, engine.tokenizer, override=arguments.chat_template)
            params = sampling_params(arguments, max_tokens=MOST_TOKENS, processors=processors, **_defaults(directory))
            params = drop_bad_words(arguments, params, engine.tokenizer)
            [adapter] = adapters_of(arguments, 1)
            engine.start()
            talk = Conversation(engine, template, params, adapter, arguments.system, variables)
            return Loop(talk, Terminal()).run()


def _variables(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise UsageError("--chat-template-kwargs", f"not JSON ({error})", 'give an object: {"name": value}') from None
    if not isinstance(found, dict):
        raise UsageError("--chat-template-kwargs", "not a JSON object", 'give one: {"name": value}')
    return found


def _defaults(directory: Path) -> dict[str, Any]:
    """Return the model's recommended sampling parameters, from generation_config.json."""
    path = directory / "generation_config.json"
    found = read_json(path) if path.is_file() else {}
    if not isinstance(found, dict):
        return {}
    if found.get("do_sample") is False:
        return {"temperature": 0.0}
    return {name: found[name] for name in _DEFAULTS if isinstance(found.get(name), (int, float))}
