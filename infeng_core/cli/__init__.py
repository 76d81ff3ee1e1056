"""The command line: ``infeng <command>``. Commands come from plugins, the built-in ones included."""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from infeng_core.errors import UsageError, explained, printable
from infeng_core.version import __version__


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status: 0, 1 (failed), 2 (wrong use) or 130 (Ctrl-C).

    Whatever goes wrong is one line on standard error; ``INFENG_LOG=debug`` shows where it came from.
    """
    if sys.stderr is None:  # closed by the caller; print() would send our errors to standard output
        sys.stderr = open(os.devnull, "w")  # noqa: PTH123, SIM115
    try:
        if sys.stdout is None:
            raise UsageError("standard output", "it is closed", "send it to a file or to /dev/null")
        try:
            return _run(sys.argv[1:] if argv is None else list(argv))
        finally:
            sys.stdout.flush()  # what cannot be written is noticed here and not while the interpreter ends
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        _end_output()
        return 0
    except Exception as error:
        _end_output()
        if isinstance(error.__cause__ or error.__context__, KeyboardInterrupt):
            return 130  # it came while a native module was being imported
        said = explained(error)
        if said is not error:
            with contextlib.suppress(Exception):
                from infeng_core.log import get_logger

                get_logger(__name__).debug("raised", exc_info=error)
        print(f"infeng: error: {said}", file=sys.stderr)
        return said.exit_status


def say(*lines: str, to_stderr: bool = False) -> None:
    """Print lines for people: what comes from files is escaped, so that none can look like another or move a cursor."""
    print("\n".join(map(printable, lines)), file=sys.stderr if to_stderr else sys.stdout)


class Parser(argparse.ArgumentParser):
    """Says what is wrong on one line, and takes ``-`` for standard input wherever it stands."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse; argparse itself gives an optional positional its value only where it follows the others directly."""
        namespace, rest = super().parse_known_args(args, namespace)
        if rest == ["-"] and getattr(namespace, "stdin", "") is None:
            namespace.stdin, rest = "-", []
        return namespace, rest

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print; argparse itself says nothing where a text that was asked for cannot be written."""
        if file is not None and file is sys.stdout:
            file.write(message)
        else:
            super()._print_message(message, file)

    def error(self, message: str) -> NoReturn:
        """Print the usage and the message; end with status 2."""
        super().error(printable(message))


def _run(argv: list[str]) -> int:
    gc.disable()  # next to nothing of what is imported is garbage, and looking through it takes a tenth of the time
    try:
        arguments = _parsed(argv)
    finally:
        gc.enable()
    status: int = arguments.run(arguments)
    return status


def _parsed(argv: list[str]) -> argparse.Namespace:
    """Return the arguments, with ``run`` of the command that they name."""
    parser = Parser(prog="infeng", description="CPU-native LLM inference engine")
    parser.add_argument("--version", action="version", version=f"infeng {__version__}")
    if argv[:1] == ["--version"]:
        parser.parse_args(argv)  # answers without looking for plugins, one of which may be what is wrong
    from infeng_core.plug.assembly import load_config
    from infeng_core.plug.manager import Plugins

    plugins = Plugins.discover(load_config())
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    chosen = next((word for word in argv if not word.startswith("-")), None)
    for name, help in sorted(plugins.commands().items()):
        # argparse reads % in help texts as a format.
        text = printable(help).replace("%", "%%")
        subparser = subparsers.add_parser(name, help=text, description=text)
        if name == chosen:
            command = plugins.command(name)  # only this command's plugin is imported
            command.configure(subparser)
            subparser.set_defaults(run=command.run)
    return parser.parse_args(argv)


def _end_output() -> None:
    """Where standard output takes no more, give the interpreter's last flush somewhere to go."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except (OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
