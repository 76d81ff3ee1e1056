"""The loop of ``infeng chat``: turns of the conversation, and commands between them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from infeng_chat.talk.conversation import Conversation
from infeng_chat.talk.terminal import Terminal
from infeng_core.api import InfengError, UsageError
from infeng_core.api.servers import as_text, parse_adapter

HELP = (
    "/save FILE       write the conversation as JSON",
    "/load FILE       continue a saved conversation",
    "/reset           remove all messages except the system message",
    "/adapter [NAME]  answer with an adapter, with several (NAME*0.5,NAME), or with base; alone: list them",
    "/system [TEXT]   set the system message; alone: remove it",
    "/stats           tokens and times of the last answer and of all",
    "/help            this",
    "/quit            end, like Ctrl-D",
    "A line that ends with a backslash continues on the next. Ctrl-C ends an answer.",
)

MOST_SHOWN = 100
"""Adapters of ``adapters.directory`` that /adapter lists."""


class Loop:
    """Reads the user's lines and answers them."""

    def __init__(self, talk: Conversation, terminal: Terminal) -> None:
        """Talk at a terminal or in a pipe."""
        self._talk = talk
        self._terminal = terminal
        self._failed = False
        self._commands: dict[str, Callable[[str], object]] = {
            "/save": lambda rest: talk.save(_path(rest)),
            "/load": lambda rest: talk.load(_path(rest)),
            "/reset": lambda rest: talk.reset(),
            "/adapter": self._adapter,
            "/system": self._system,
            "/stats": lambda rest: terminal.tell(*stats(talk)),
            "/help": lambda rest: terminal.tell(*HELP),
        }

    def run(self) -> int:
        """Run until the input ends or /quit; return 1 if a line from a pipe could not be answered."""
        if self._terminal.is_interactive:
            self._terminal.tell("Ctrl-D ends, Ctrl-C stops an answer, /help shows commands.")
        while True:
            try:
                text = self._terminal.read()
                if text is None or text.strip() in ("/quit", "/exit"):
                    return int(self._failed and not self._terminal.is_interactive)
                if text.strip():
                    self._turn(text)
            except KeyboardInterrupt:
                if not self._terminal.is_interactive:
                    raise
                self._terminal.end()
                self._terminal.tell("")
            except InfengError as error:
                self._failed = True
                self._terminal.end()
                self._terminal.tell(f"infeng: error: {error}")

    def _turn(self, text: str) -> None:
        word, _, rest = text.partition(" ")
        if word.strip() in self._commands:
            self._commands[word.strip()](rest.strip())
        elif word.startswith("/"):
            raise UsageError(word, "it is not a command", "see /help; put a blank before a line that is not a command")
        else:
            try:
                self._talk.say(text, self._terminal.show)
            finally:
                self._terminal.end()

    def _adapter(self, rest: str) -> None:
        talk = self._talk
        names = list(dict.fromkeys([*talk.engine.adapters, *talk.engine.adapters.available(most=MOST_SHOWN)]))
        if rest:
            chosen = parse_adapter(rest)
            asked = [] if chosen is None else [chosen] if isinstance(chosen, str) else [name for name, _ in chosen]
            unknown = next((name for name in asked if name not in talk.engine.adapters), None)
            if unknown is not None:
                raise UsageError(f"adapter {unknown}", "it is not loaded", f"there are: {', '.join(['base', *names])}")
            talk.adapter = chosen
        self._terminal.tell(f"{as_text(talk.adapter)} answers; there are: {', '.join(['base', *names])}")

    def _system(self, rest: str) -> None:
        self._talk.system = rest


def stats(talk: Conversation) -> list[str]:
    """Return statistics of the last answer and of all answers."""
    if not talk.answers:
        return ["there is no answer yet"]
    last = talk.answers[-1]
    usage, timings = last.usage, last.timings
    decoding = timings.total - timings.first_token
    rate = f", {(usage.completion_tokens - 1) / decoding:.1f} tokens/s" if decoding > 0 else ""
    answered = sum(answer.usage.completion_tokens for answer in talk.answers)
    return [
        f"last answer: {usage.prompt_tokens} prompt tokens, {usage.cached_tokens} of them cached; first "
        f"token after {timings.first_token:.2f} s; {usage.completion_tokens} tokens in {timings.total:.2f} s{rate} "
        f"({last.finish_reason})",
        f"all: {len(talk.answers)} answers of {answered} tokens; {len(talk.messages)} messages",
    ]


def _path(rest: str) -> Path:
    if not rest:
        raise UsageError("file", "none is named", "write /save FILE or /load FILE")
    try:
        return Path(rest).expanduser()
    except RuntimeError:  # the home of an unknown user, such as ~nobody
        raise UsageError(rest, "there is no such user, or no home", "write the whole path") from None
