"""The command line: ``infeng <command>``. Commands come from plugins; the core has none."""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import sys
from collections.abc import Sequence
from typing import Any, cast

from infeng_core.errors import PluginError, UsageError, explained, printable, without_controls
from infeng_core.version import __version__


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status: 0, 1 (failed), 2 (wrong use) or 130 (Ctrl-C).

    Each error is one line on standard error; ``INFENG_LOG=debug`` adds tracebacks of plugins' and unexpected ones.
    """
    if sys.stderr is None:  # closed by the caller; print() would send our errors to standard output
        sys.stderr = open(os.devnull, "w")  # noqa: PTH123, SIM115
    try:
        if sys.stdout is None:
            raise UsageError("standard output", "it is closed", "send it to a file or to /dev/null")
        try:
            return _run(sys.argv[1:] if argv is None else list(argv))
        finally:
            sys.stdout.flush()  # write errors appear here, not while the interpreter ends
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        _end_output()
        return 0
    except Exception as error:
        _end_output()
        if isinstance(error.__cause__ or error.__context__, KeyboardInterrupt):
            return 130  # Ctrl-C came while a native module was being imported
        said = explained(error)
        if said is not error or isinstance(error, PluginError):
            with contextlib.suppress(Exception):
                from infeng_core.log import get_logger

                get_logger(__name__).debug("raised", exc_info=error)
        _say_error(str(said))
        return said.exit_status


def say(*lines: str, to_stderr: bool = False) -> None:
    """Print lines for people. Text from files is escaped, so that it cannot imitate another line or move the cursor.

    On standard error the lines are events if ``INFENG_LOG`` asks for JSON.
    """
    if not to_stderr:
        print("\n".join(map(printable, lines)))
        return
    from infeng_core.log import announce

    for line in lines:
        announce(line)


def emit(text: str) -> None:
    """Write a model's text to standard output at once, as UTF-8 whatever the locale.

    A file or a pipe gets every byte; on a terminal control characters are replaced, except tabs and line ends.
    """
    if sys.stdout.isatty():
        text = without_controls(text)
    sys.stdout.buffer.write(text.encode("utf-8", errors="replace"))
    sys.stdout.buffer.flush()


def _say_error(text: str) -> None:
    from infeng_core.log import announce, is_json

    with contextlib.suppress(UsageError):  # from INFENG_LOG itself, which may be the cause
        if is_json():
            announce(text, "error")
            return
    print(f"infeng: error: {text}", file=sys.stderr)


def _run(argv: list[str]) -> int:
    gc.disable()  # imports create almost no garbage, and collecting it takes a tenth of the time
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
        parser.parse_args(argv)  # this answers without loading plugins, one of which may be broken
    from infeng_core.plug.assembly import load_config
    from infeng_core.plug.hookspecs import RUN_OPTIONS
    from infeng_core.plug.manager import Plugins
    from infeng_core.plug.wheels import is_of_a_wheel

    plugins = Plugins.discover(load_config())
    chosen = next((word for word in argv if not word.startswith("-")), None)

    def parser_of(*, prog: str, **texts: Any) -> Parser:
        """Return the parser of the chosen command; of others the help is listed, for which any will do."""
        return Parser(prog=prog, **texts) if prog.rpartition(" ")[2] == chosen else parser

    subparsers: Any = parser.add_subparsers(
        dest="command", metavar="COMMAND", required=True, parser_class=cast(Any, parser_of)
    )
    commands = plugins.commands()
    if chosen is not None and chosen not in commands and is_of_a_wheel("commands", chosen):
        plugins.command(chosen)  # raises the error for this name
    for name, help in sorted(commands.items()):
        # argparse interprets % in help texts.
        text = printable(help).replace("%", "%%")
        subparser = subparsers.add_parser(name, help=text, description=text)
        if name == chosen:
            command = plugins.command(name)  # only this command's plugin is imported
            command.configure(subparser)
            if getattr(command, "takes_run_options", False):
                _require_options(argv, plugins.names("run_options"))
                groups = list(dict(plugins.each(RUN_OPTIONS)).values())
                for group in groups:
                    group.add(subparser, name)
                subparser.set_defaults(run_options=groups)
            subparser.set_defaults(run=command.run)
    parsed: argparse.Namespace = parser.parse_args(argv)
    return parsed


def _require_options(argv: Sequence[str], brought: Sequence[str]) -> None:
    """Raise UsageError for an option that belongs to one of the project's wheels that is not installed."""
    from infeng_core.plug.wheels import OPTIONS, WHEELS

    for option in (word.partition("=")[0] for word in argv):
        if option in OPTIONS and OPTIONS[option] not in brought:
            wheel = WHEELS["run_options"][OPTIONS[option]]
            raise UsageError(option, "no plugin here brings it", f"pip install {wheel}")


def _end_output() -> None:
    """If standard output is closed, redirect the interpreter's last flush."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except (OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
