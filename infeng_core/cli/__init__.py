"""The command line: ``infeng <command>``. Commands come from plugins, the built-in ones included."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

import infeng_core
from infeng_core.errors import InfengError


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status: 0, 1 (failed) or 2 (wrong use)."""
    try:
        status = _run(sys.argv[1:] if argv is None else list(argv))
        sys.stdout.flush()  # a reader that went away is noticed here and not while the interpreter ends
        return status
    except InfengError as error:
        print(f"infeng: error: {error}", file=sys.stderr)
        return error.exit_status
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output is gone; give the interpreter's last flush somewhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _run(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="infeng", description="CPU-native LLM inference engine")
    parser.add_argument("--version", action="version", version=f"infeng {infeng_core.__version__}")
    if argv[:1] == ["--version"]:
        parser.parse_args(argv)  # answers without looking for plugins, one of which may be what is wrong
    from infeng_core.plug.manager import Plugins
    from infeng_core.plug.manifest import load_config

    plugins = Plugins.discover(load_config())
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    chosen = next((word for word in argv if not word.startswith("-")), None)
    for name, help in sorted(plugins.commands().items()):
        # argparse reads % in help texts as a format.
        text = help.replace("%", "%%")
        subparser = subparsers.add_parser(name, help=text, description=text)
        if name == chosen:
            command = plugins.command(name)  # only this command's plugin is imported
            command.configure(subparser)
            subparser.set_defaults(run=command.run)
    arguments = parser.parse_args(argv)
    status: int = arguments.run(arguments)
    return status
