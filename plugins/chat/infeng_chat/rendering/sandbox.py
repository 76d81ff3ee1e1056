"""The program that renders one chat template in a separate process, with jinja2 and without the engine.

Jinja's sandbox shields the interpreter's internals but does not bound the work of a template, not even of its
compilation. The limits do: on address space, on CPU time for each message (the process is killed), and on output.

Frames on standard input and output: 8 bytes of length, little-endian, then that many bytes of JSON in UTF-8. The first
frame is {"template", "limits"}, every further one {"variables": [{name: value}, ...]}; each is answered by one frame,
{"texts": [...]} or {"error", "message"}.
"""

import json
import os
import resource
import signal
import sys
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

NICENESS = 5
"""Niceness of the process: the engine's steps have priority over renderings."""


class Generation(jinja2.ext.Extension):
    """``{% generation %}`` ... ``{% endgeneration %}``, which marks an answer for training, renders its body."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 declares it so)

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        """Parse the block."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_render"), [], [], body).set_lineno(line)

    def _render(self, caller: Any) -> str:
        return str(caller())


class RefusalError(Exception):
    """``raise_exception(message)`` of a template."""


class TooLongError(Exception):
    """The output has too many characters."""


def raise_exception(message: object) -> None:
    """End the rendering with a message for the caller."""
    raise RefusalError(str(message))


def strftime_now(format: str) -> str:
    """Return the local time."""
    return datetime.now().strftime(format)


def tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return JSON without the HTML escapes of jinja2's own filter, which models were not trained on."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def compiled(source: str) -> jinja2.Template:
    """Compile a template in the same environment as transformers' ``apply_chat_template``."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = strftime_now
    return environment.from_string(source)


def rendered(template: jinja2.Template, variables: dict[str, Any], most: int) -> str:
    """Return the template's text; raises TooLongError for more than ``most`` characters."""
    pieces, length = [], 0
    for piece in template.generate(**variables):
        length += len(piece)
        if length > most:
            raise TooLongError
        pieces.append(piece)
    return "".join(pieces)


def failure(error: Exception) -> dict[str, str]:
    """Return the kind and a short message of an exception."""
    if isinstance(error, RefusalError):
        kind, text = "refused", str(error)
    elif isinstance(error, jinja2.TemplateSyntaxError):
        kind, text = "syntax", f"line {error.lineno}: {error.message}"
    elif isinstance(error, TooLongError):
        kind, text = "length", ""
    elif isinstance(error, MemoryError):
        kind, text = "memory", ""
    elif isinstance(error, RecursionError):
        kind, text = "depth", ""
    else:
        kind, text = "failed", f"{type(error).__name__}: {error}"
    return {"error": kind, "message": text[:1000]}


def read() -> Any:
    """Return the next message, None at the end of the input."""
    length = int.from_bytes(sys.stdin.buffer.read(8), "little")
    return json.loads(sys.stdin.buffer.read(length)) if length else None


def write(message: object) -> None:
    """Answer."""
    data = json.dumps(message).encode()
    sys.stdout.buffer.write(len(data).to_bytes(8, "little") + data)
    sys.stdout.buffer.flush()


def main() -> None:
    """Serve until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    first = read()
    if first is None:
        return
    limits, template = first["limits"], None
    resource.setrlimit(resource.RLIMIT_AS, (limits["memory"], limits["memory"]))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(NICENESS)
    message = first
    while message is not None:
        signal.setitimer(signal.ITIMER_PROF, limits["seconds"])  # its default action ends the process
        answer: dict[str, Any]
        try:
            if template is None:
                template, answer = compiled(first["template"]), {"texts": []}
            else:
                each = message["variables"]
                answer = {"texts": [rendered(template, variables, limits["output"]) for variables in each]}
        except Exception as error:
            answer = failure(error)
        signal.setitimer(signal.ITIMER_PROF, 0)
        write(answer)
        message = read()


if __name__ == "__main__":
    main()
