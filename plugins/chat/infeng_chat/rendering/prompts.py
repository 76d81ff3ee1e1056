"""Rendering of conversations to prompts by a model's template."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from infeng_chat.rendering.capabilities import Capabilities, Prober
from infeng_chat.rendering.files import TemplateFiles
from infeng_chat.rendering.messages import prepared, text_of
from infeng_chat.rendering.renderer import Renderer, RenderError, RenderLimits
from infeng_chat.rendering.tokens import Tokens
from infeng_chat.rendering.typed import Marking, Piece, Spelled, changed, joined, texts_of
from infeng_core.api import RequestError, Tokenizer

_RESERVED = {"messages", "tools", "add_generation_prompt", "raise_exception", "strftime_now", "self", "loop"}


class Prompts:
    """Renders conversations. Thread-safe."""

    def __init__(self, files: TemplateFiles, tokenizer: Tokenizer, limits: RenderLimits) -> None:
        """Start the template's process and detect its capabilities; raises ModelError."""
        self._files = files
        self._renderer = Renderer(files.text, files.name, limits)
        self._renderer.compile()
        self.can: Capabilities = Prober(self._renderer, files.special).capabilities()
        self._with_tools, self._can_with_tools = self._renderer, self.can
        if files.with_tools is not None:
            self._with_tools = Renderer(files.with_tools, f"{files.name} (tool_use)", limits)
            self._with_tools.compile()
            self._can_with_tools = Prober(self._with_tools, files.special).capabilities()
        self.tokens = Tokens(tokenizer)
        self._spelled = Spelled(getattr(tokenizer, "special_tokens", None), self.tokens.parses)

    @property
    def takes_tools(self) -> bool:
        """Whether the template renders tools; if not, they are described in the system message."""
        return self._can_with_tools.tools

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool,
        continue_final_message: bool,
        variables: Mapping[str, Any],
    ) -> list[Piece]:
        """Return a prompt in pieces; raises RequestError."""
        renderer, can = (self._with_tools, self._can_with_tools) if tools else (self._renderer, self.can)
        source = (self._files.with_tools if tools else None) or self._files.text
        taken = prepared(messages, tools, can, source)
        self._check(variables)
        given = {
            "messages": taken,
            "tools": list(tools) if tools and can.tools else None,
            "documents": None,
            **variables,
        }
        fixed = {
            "add_generation_prompt": add_generation_prompt and not continue_final_message,
            **self._files.special,
        }
        pieces = self._pieces(renderer, given, fixed)
        return _cut(pieces, text_of(taken[-1]["content"])) if continue_final_message else pieces

    def close(self) -> None:
        """End the processes."""
        self._renderer.close()
        self._with_tools.close()

    def _pieces(self, renderer: Renderer, given: Mapping[str, Any], fixed: Mapping[str, Any]) -> list[Piece]:
        if not any(map(self._spelled.is_in, texts_of(given))):
            [text] = renderer.render([{**fixed, **given}])
            return [Piece(text, False)]
        marking = Marking([*texts_of(given), *texts_of(fixed), self._files.text], self._spelled)
        [plain] = renderer.render([{**fixed, **given}])
        marked = _attempt(renderer, {**fixed, **changed(given, marking.mark)})
        masked = _attempt(renderer, {**fixed, **changed(given, marking.mask)})
        own = self._spelled.count([masked])
        for pieces in (marking.marked(marked), marking.unmasked(masked)):
            untyped = (piece.text for piece in pieces if not piece.is_typed)
            if "".join(piece.text for piece in pieces) == plain and self._spelled.count(untyped) == own:
                return pieces
        why = "they spell special tokens, and the chat template changes them so that its own cannot be told apart"
        raise RequestError("messages", why, "leave these out")

    def _check(self, variables: Mapping[str, Any]) -> None:
        for name in variables:
            if not isinstance(name, str) or not name.isidentifier() or name in _RESERVED or name in self._files.special:
                raise RequestError("chat_template_kwargs", f"{str(name)[:80]!r} cannot be set", "leave it out")


def _attempt(renderer: Renderer, variables: Mapping[str, Any]) -> str:
    """Render a variant of the texts; returns "" if the template refuses it."""
    try:
        return renderer.attempt([variables])[0]
    except RenderError:
        return ""


def _cut(pieces: Iterable[Piece], final: str) -> list[Piece]:
    """Return a prompt cut after the last message's text, so that the answer continues it."""
    pieces = list(pieces)
    text, core = "".join(piece.text for piece in pieces), final.strip()
    begin = text.rfind(core)
    if not core or begin < 0:
        why = "the chat template changes the last message's text"
        raise RequestError("continue_final_message", why, "end the messages with an assistant's text")
    end = begin + len(core)
    if text[begin:].startswith(final.lstrip()):
        end = begin + len(final.lstrip())
    found = []
    for piece in pieces:
        found.append(Piece(piece.text[:end], piece.is_typed))
        end = max(0, end - len(piece.text))
    return joined(found)
