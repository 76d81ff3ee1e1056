"""Conversion of a conversation to a prompt, with the parser and the constraints of its answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from infeng_chat.template import ChatPrompt, OutputParser

from infeng_core.api import InfengError
from infeng_serve.protocol import structured
from infeng_serve.protocol.answer import Context
from infeng_serve.protocol.bounds import check_conversation
from infeng_serve.protocol.errors import ApiError, invalid, not_supported, of
from infeng_serve.protocol.structured import Form
from infeng_serve.protocol.tools import Selection


@dataclass(frozen=True, slots=True)
class Dialogue:
    """A conversation that is ready for the engine."""

    prompt: ChatPrompt
    parser: Callable[[], OutputParser]
    """Returns a parser for one answer."""
    skip_special_tokens: bool
    """Whether the parser expects text without special tokens."""
    processors: tuple[tuple[str, Any], ...]
    paths: Mapping[str, str]
    """Paths of the parameters that asked for processors, by the processors' names."""
    room: int
    """Tokens of the context left for the answer."""


def rendered(
    context: Context,
    messages: Sequence[Mapping[str, Any]],
    selection: Selection,
    *,
    size: int,
    param: str = "messages",
    add_generation_prompt: bool | None = None,
    continue_final_message: bool | None = None,
    variables: Mapping[str, Any] | None = None,
) -> ChatPrompt:
    """Render a conversation from a body of ``size`` bytes; takes as long as the template does.

    Raises ApiError, which names ``param``.
    """
    if continue_final_message and add_generation_prompt:
        why = "add_generation_prompt and continue_final_message: a message is either begun or continued"
        raise invalid("continue_final_message", why)
    check_conversation(size, messages, (*selection.tools, variables), context, param)
    context.check()
    try:
        return context.template.prompt(
            messages,
            tools=selection.tools,
            add_generation_prompt=not continue_final_message
            if add_generation_prompt is None
            else add_generation_prompt,
            continue_final_message=bool(continue_final_message),
            variables=variables,
        )
    except InfengError as error:
        raise of(error, param) from None


def dialogue(
    context: Context,
    messages: Sequence[Mapping[str, Any]],
    selection: Selection,
    form: Form | None,
    *,
    param: str = "messages",
    **how: Any,
) -> Dialogue:
    """Convert a conversation; arguments and errors are those of ``rendered``."""
    prompt = rendered(context, messages, selection, param=param, **how)
    template = context.template
    room = context.context - len(prompt.ids)
    if room <= 0:
        why = f"{param}: they are {len(prompt.ids)} tokens, and the context {context.context}: shorten them"
        raise ApiError(400, why, param=param, code="context_length_exceeded")
    held = _held_to(context, selection, form)
    processors = structured.processors(held, after=prompt.reasoning_end or None)

    def parser() -> OutputParser:
        return template.parser(prompt, tools=selection.tools)

    return Dialogue(prompt, parser, not parser().reads_special_tokens, processors, structured.paths(held), room)


def _held_to(context: Context, selection: Selection, form: Form | None) -> Form | None:
    """Return the constraint on an answer: the form of a required call, or else the form of a text."""
    if not selection.must_call:
        return form
    if form is not None and not form.is_of_text:
        raise invalid("tool_choice", f"tool_choice: an answer that must be a call can be held to no {form.path} beside")
    try:
        found = context.template.call_grammar(selection.tools, name=selection.name, parallel=selection.parallel)
    except InfengError as error:
        raise of(error, "tools") from None
    if found is None:
        raise not_supported("tool_choice", "how this model writes calls is not known: give auto or none")
    return Form("tools", found)
