"""The command line: ``infeng <command>``. Commands come from plugins, the built-in ones included."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

import infeng_core
from infeng_core import builtin
from infeng_core.errors import InfengError
from infeng_core.plug.hookspecs import Command


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status: 0, 1 (failed) or 2 (wrong use)."""
    try:
        return _run(sys.argv[1:] if argv is None else list(argv))
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
    commands: dict[str, Command] = {command.name: command for command in builtin.infeng_commands()}
    parser = argparse.ArgumentParser(prog="infeng", description="CPU-native LLM inference engine")
    parser.add_argument("--version", action="version", version=f"infeng {infeng_core.__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, command in sorted(commands.items()):
        command.configure(subparsers.add_parser(name, help=command.help, description=command.help))
    arguments = parser.parse_args(argv)
    return commands[arguments.command].run(arguments)
