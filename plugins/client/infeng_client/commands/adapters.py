"""``infeng adapters``: lists, loads, reloads and unloads adapters of a running server."""

from __future__ import annotations

import argparse
import json
from typing import Any

from infeng_client.client import Client
from infeng_client.commands.server import add_server, client_of, explained
from infeng_client.errors import ApiError
from infeng_client.results import Model
from infeng_core.api import UsageError, say, unknown_key_remedy

VERBS = {
    "list": "show the adapters that the key may use",
    "load": "load an adapter under a name",
    "reload": "reload the files of an adapter",
    "unload": "unload an adapter",
}


class AdaptersCommand:
    """``infeng adapters list|load|reload|unload URL ...``."""

    name = "adapters"
    help = "list, load, reload and unload the adapters of a server"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the verbs and their arguments."""
        verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
        for name, help in VERBS.items():
            verb = verbs.add_parser(name, help=help, description=help)
            add_server(verb)
            if name != "list":
                verb.add_argument("adapter", metavar="NAME", help="the name by which requests choose it")
            verb.add_argument("--json", action="store_true", help="print JSON on stdout")
        text = "a directory or GGUF file of the server's machine, or a hub name"
        verbs.choices["load"].add_argument("path", metavar="PATH", help=text)
        text = "another source, which is read from now on (default: the one it has)"
        verbs.choices["reload"].add_argument("path", metavar="PATH", nargs="?", help=text)

    def run(self, arguments: argparse.Namespace) -> int:
        """Call the server; raises InfengError if it refuses."""
        with client_of(arguments) as client:
            try:
                found = done(client, arguments)
            except ApiError as error:
                raise explained(error, client.base_url) from error
        if arguments.verb == "list":
            show(found, as_json=arguments.json)
        elif arguments.json:
            print(json.dumps({"done": arguments.verb, **as_facts(found[0])}))
        else:
            say(f"{arguments.adapter}: {arguments.verb}ed")
        return 0


def done(client: Client, arguments: argparse.Namespace) -> list[Model]:
    """Run the verb; return all adapters, or the affected one. Raises ApiError."""
    if arguments.verb == "load":
        client.load_adapter(arguments.adapter, arguments.path)
    found = [model for model in client.models() if model.parent is not None]
    if arguments.verb == "list":
        return found
    one = named(arguments.adapter, found)
    if arguments.verb == "reload":
        told = one.root if one.root and "/" in one.root else ""  # a last part alone is no path: the server knows it
        client.load_adapter(one.id, arguments.path or told, replace=True)
    elif arguments.verb == "unload":
        client.unload_adapter(one.id)
    return [one]


def named(name: str, adapters: list[Model]) -> Model:
    """Return the adapter of a name; raises UsageError with the most similar name."""
    for model in adapters:
        if model.id == name:
            return model
    known = [model.id for model in adapters]
    raise UsageError(f"adapter {name}", "the server has none of this name", unknown_key_remedy(name, known))


def show(adapters: list[Model], *, as_json: bool) -> None:
    """Print the adapters, one on a line, or as a JSON list."""
    if as_json:
        print(json.dumps([as_facts(model) for model in adapters], indent=2))
        return
    width = max((len(model.id) for model in adapters), default=0)
    lines = [f"{model.id:{width}}  {model.root or ''}" for model in adapters]
    say(*(lines or ["no adapter is loaded"]))


def as_facts(model: Model) -> dict[str, Any]:
    """Return an adapter as plain data."""
    return {"name": model.id, "path": model.root, "base": model.parent}
