"""The command line: ``infeng <command>``. Commands come from plugins, the built-in ones included."""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import sys
from collections.abc import Sequence
from typing import Any, cast

from infeng_core.errors import UsageError, explained, printable, without_controls
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
        _say_error(str(said))
        return said.exit_status


def say(*lines: str, to_stderr: bool = False) -> None:
    """Print lines for people: what comes from files is escaped, so that none can look like another or move a cursor.

    On standard error they are events where ``INFENG_LOG`` asks for JSON.
    """
    if not to_stderr:
        print("\n".join(map(printable, lines)))
        return
    from infeng_core.log import announce

    for line in lines:
        announce(line)


def emit(text: str) -> None:
    """Write what a model said to standard output as UTF-8 whatever the locale, at once.

    A file or a pipe gets every byte; on a terminal control characters are made harmless, but for tabs and line ends.
    """
    if sys.stdout.isatty():
        text = without_controls(text)
    sys.stdout.buffer.write(text.encode("utf-8", errors="replace"))
    sys.stdout.buffer.flush()


def _say_error(text: str) -> None:
    from infeng_core.log import announce, is_json

    with contextlib.suppress(UsageError):  # of INFENG_LOG itself, which may be what is wrong
        if is_json():
            announce(text, "error")
            return
    print(f"infeng: error: {text}", file=sys.stderr)


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
    from infeng_core.cli.parser import Parser

    parser = Parser(prog="infeng", description="CPU-native LLM inference engine")
    parser.add_argument("--version", action="version", version=f"infeng {__version__}")
    if argv[:1] == ["--version"]:
        parser.parse_args(argv)  # answers without looking for plugins, one of which may be what is wrong
    from infeng_core.plug.assembly import load_config
    from infeng_core.plug.manager import Plugins
    from infeng_core.plug.wheels import is_of_a_wheel

    plugins = Plugins.discover(load_config())
    chosen = next((word for word in argv if not word.startswith("-")), None)

    def parser_of(*, prog: str, **texts: Any) -> Parser | None:
        """Return the parser of the chosen command; the help of the others is listed without any."""
        return Parser(prog=prog, **texts) if prog.rpartition(" ")[2] == chosen else None

    subparsers: Any = parser.add_subparsers(
        dest="command", metavar="COMMAND", required=True, parser_class=cast(Any, parser_of)
    )
    commands = plugins.commands()
    if chosen is not None and chosen not in commands and is_of_a_wheel("commands", chosen):
        plugins.command(chosen)  # says which
    for name, help in sorted(commands.items()):
        # argparse reads % in help texts as a format.
        text = printable(help).replace("%", "%%")
        subparser = subparsers.add_parser(name, help=text, description=text)
        if name == chosen:
            command = plugins.command(name)  # only this command's plugin is imported
            command.configure(subparser)
            if getattr(command, "takes_run_options", False):
                _require_options(argv, plugins.names("run_options"))
                groups = list(plugins.run_options().values())
                for group in groups:
                    group.add(subparser, name)
                subparser.set_defaults(run_options=groups)
            subparser.set_defaults(run=command.run)
    parsed: argparse.Namespace = parser.parse_args(argv)
    return parsed


def _require_options(argv: Sequence[str], brought: Sequence[str]) -> None:
    """Raise UsageError for an option of one of the project's wheels that is not installed."""
    from infeng_core.plug.wheels import OPTIONS, WHEELS

    for option in (word.partition("=")[0] for word in argv):
        if option in OPTIONS and OPTIONS[option] not in brought:
            wheel = WHEELS["run_options"][OPTIONS[option]]
            raise UsageError(option, "no plugin here brings it", f"pip install {wheel}")


def _end_output() -> None:
    """Where standard output takes no more, give the interpreter's last flush somewhere to go."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except (OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
