"""The chat template of a model directory: renders prompts and parses answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from infeng_chat import syntaxes
from infeng_chat.answers import reasoning
from infeng_chat.answers.calls import Syntax, functions
from infeng_chat.answers.declared import Declared, UnknownTemplateError
from infeng_chat.answers.parser import Parser, Plain, answer
from infeng_chat.answers.sink import call_id, short_id
from infeng_chat.contract import ChatPrompt, OutputParser
from infeng_chat.rendering.files import TemplateFiles
from infeng_chat.rendering.messages import text_of
from infeng_chat.rendering.prompts import Prompts
from infeng_chat.rendering.renderer import LIMITS, RenderLimits
from infeng_chat.syntaxes import harmony, lark
from infeng_chat.syntaxes.tags import HERMES
from infeng_core.api import RequestError, Tokenizer, get_logger


class ModelTemplate:
    """A ``ChatTemplate``."""

    def __init__(
        self,
        directory: Path,
        tokenizer: Tokenizer,
        override: Path | None = None,
        limits: RenderLimits = LIMITS,
    ) -> None:
        """Read a model directory and probe its template; raises ModelError."""
        files = TemplateFiles.read(directory, override)
        self.name = files.name
        """The template's origin; "plain" if the model has none."""
        self.tokenizer = tokenizer
        source = f"{files.text}\n{files.with_tools or ''}"
        self._prompts = Prompts(files, tokenizer, limits)
        self._reasoning = reasoning.detected(source)
        self._syntax: Syntax | None = syntaxes.detected(source) if self.takes_tools else HERMES
        self._is_harmony = self._syntax is harmony.SYNTAX
        self._new_id = short_id if "Tool call IDs should be" in source else call_id
        self._declared = None if files.response is None else _declared(files.response, directory)
        self._stop_ids, self._stops = self._ends()
        tags = () if self._reasoning is None else (self._reasoning.open, self._reasoning.close)
        self._thinks_in_special = any(self._prompts.tokens.single(tag) is not None for tag in tags)

    @property
    def takes_tools(self) -> bool:
        """Whether the template renders tools; if not, they are described in the system message."""
        return self._prompts.takes_tools

    def prompt(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, Any] | None = None,
    ) -> ChatPrompt:
        """Render messages in OpenAI's form. Blocks for milliseconds; thread-safe.

        Raises RequestError for messages that the template refuses or that take too long to render.
        """
        pieces = self._prompts.render(messages, tools, add_generation_prompt, continue_final_message, variables or {})
        text = "".join(piece.text for piece in pieces)
        opens = False
        if self._reasoning is not None and continue_final_message:
            opens = self._reasoning.opened_in(text_of(messages[-1].get("content")))
        elif self._reasoning is not None:
            opens = self._reasoning.opened_by(text)
        end = self._reasoning.close if opens and self._reasoning is not None else ""
        return ChatPrompt(text, self._prompts.tokens.of(pieces), self._stop_ids, opens, self._stops, end)

    def parser(self, prompt: ChatPrompt, *, tools: Sequence[Mapping[str, Any]] = ()) -> OutputParser:
        """Return a parser for one answer to ``prompt``; without tools, calls stay text."""
        known = functions(tools)
        if self._declared is not None:
            parser = Parser(self._declared.reader(known), self._new_id)
            parser.begin(self._declared.begun(prompt.text))
            return parser
        if self._is_harmony:
            return Parser(harmony.answer(known), self._new_id)
        syntax = self._syntax if known else None
        if syntax is None and self._reasoning is None:
            return Plain()
        reader = answer(self._reasoning, prompt.opens_reasoning, syntax, known)
        return Parser(reader, self._new_id, self._thinks_in_special or syntax is not None)

    def call_grammar(
        self, tools: Sequence[Mapping[str, Any]], *, name: str | None = None, parallel: bool = True
    ) -> Mapping[str, Any] | None:
        """Return the argument of the processor ``grammar`` that admits only calls, of the tool ``name`` if given.

        None if the template's syntax of calls is unknown. Raises RequestError for the name of an unknown tool.
        """
        known = functions(tools)
        if name is not None and name not in known:
            raise RequestError("tool_choice", f"{name!r:.80} is not among the tools", "name one of them")
        chosen = known if name is None else {name: known[name]}
        if self._syntax is None or self._syntax.grammar is None or not chosen:
            return None
        return {"lark": self._syntax.grammar(chosen, self._tag, parallel)}

    def close(self) -> None:
        """End the template's process; it starts again when it is needed."""
        self._prompts.close()

    def _tag(self, text: str) -> str:
        """Return a tag in a grammar's notation: the number of a special token, or a quoted text."""
        token = self._prompts.tokens.single(text)
        return lark.quoted(text) if token is None else f"<[{token}]>"

    def _ends(self) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """Return the tokens with which the template ends a turn, or if there are none, the texts."""
        tokens, can = self._prompts.tokens, self._prompts.can
        first = tokens.first_special(can.ending + (can.separator or ""))
        more = (tokens.single(text) for text in (self._syntax.stops if self._syntax is not None else ()))
        found = tuple(dict.fromkeys(token for token in (first, *more) if token is not None))
        separator = (can.separator or "").rstrip()
        return found, (separator,) if separator.strip() and first is None else ()


def _declared(response: Mapping[str, Any], directory: Path) -> Declared | None:
    """Return the model's response template; None, with a warning, if it is not supported."""
    try:
        return Declared.of(response)
    except UnknownTemplateError as error:
        where = str(directory / "tokenizer_config.json")
        get_logger(__name__).warning("response_template is not used", file=where, why=str(error))
        return None
