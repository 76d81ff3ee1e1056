"""The templates, special tokens and response template in the files of a model directory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from infeng_core.api import ModelError, model_file, read_json, read_text

MOST_BYTES = 1 << 20
"""Most bytes of a template; the largest known have 20 KB."""
PLAIN = """\
{%- for message in messages -%}
{%- if message.role == 'system' -%}
{{ message.content }}

{% elif message.role == 'user' -%}
User: {{ message.content }}
{% elif message.role == 'assistant' -%}
Assistant: {{ message.content }}
{% else -%}
{{ message.role | capitalize }}: {{ message.content }}
{% endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
Assistant:
{%- endif -%}
"""
"""The template for models without one, documented in docs/chat.md."""

WITH_TOOLS = ("additional_chat_templates/tool_use.jinja", "chat_template.tool_use.jinja")
"""Files of the template for conversations with tools: as transformers saves it, and in a converted model."""

_SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_REMEDY = "correct it, or give a template with --chat-template FILE"


@dataclass(frozen=True, slots=True)
class TemplateFiles:
    """A model's template and the settings that belong to it."""

    name: str
    """The template's origin."""
    text: str
    with_tools: str | None = None
    """A separate template for conversations with tools."""
    special: Mapping[str, Any] = field(default_factory=dict)
    """Texts of ``bos_token`` and the other special tokens, as variables for templates."""
    response: Mapping[str, Any] | None = None
    """``response_template``, which describes how to parse an answer."""
    is_plain: bool = False
    """Whether the model has no template, so that ``text`` is PLAIN."""

    @staticmethod
    def read(directory: Path, override: Path | None = None) -> TemplateFiles:
        """Read a model directory; raises ModelError for a malformed file.

        The template is the first that exists of ``override``, chat_template.jinja, chat_template.json and
        tokenizer_config.json.
        """
        settings = _mapping(model_file(directory, "tokenizer_config.json"))
        special = _special(settings, _mapping(model_file(directory, "special_tokens_map.json")))
        response = settings.get("response_template")
        if override is not None:
            text = _text_of(override)
            return TemplateFiles(override.name, text, None, special)
        name, found = _template(directory, settings)
        if found is None:
            return TemplateFiles("plain", PLAIN, None, special, is_plain=True)
        text, with_tools = _chosen(name, found)
        if with_tools is None:
            extra = next((path for place in WITH_TOOLS if (path := model_file(directory, place)).is_file()), None)
            with_tools = None if extra is None else read_text(extra, MOST_BYTES)
        return TemplateFiles(name, text, with_tools, special, response if isinstance(response, dict) else None)


def _template(directory: Path, settings: Mapping[str, Any]) -> tuple[str, Any]:
    """Return the origin of a directory's template, and the template: a text, named templates, or None."""
    jinja, old = (model_file(directory, f"chat_template.{kind}") for kind in ("jinja", "json"))
    if jinja.is_file():
        return jinja.name, read_text(jinja, MOST_BYTES)
    if old.is_file():
        return old.name, _mapping(old).get("chat_template", [])
    return "tokenizer_config.json", settings.get("chat_template")


def _text_of(path: Path) -> str:
    """Return the template in a file: Jinja, or JSON as chat_template.json."""
    if path.suffix != ".json":
        return read_text(path, MOST_BYTES, remedy="give a file with a Jinja template")
    return _chosen(path.name, _mapping(path).get("chat_template", []))[0]


def _chosen(name: str, found: Any) -> tuple[str, str | None]:
    """Return the template, and the one for conversations with tools if it is separate."""
    named = {"default": found} if isinstance(found, str) else _named(found)
    if not named or not all(isinstance(text, str) and len(text) <= MOST_BYTES for text in named.values()):
        why = f"chat_template is neither a text of at most {MOST_BYTES} characters nor a list of named ones"
        raise ModelError(name, why, _REMEDY)
    text = named.get("default", next(iter(named.values())))
    return text, named.get("tool_use")


def _named(found: Any) -> dict[str, Any]:
    """Return templates by name: a list of {"name", "template"}, or a mapping."""
    if isinstance(found, dict):
        return found
    if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
        return {}
    return {str(entry.get("name")): entry.get("template") for entry in found}


def _mapping(path: Path) -> Mapping[str, Any]:
    if not path.is_file():
        return {}
    document = read_json(path)
    if not isinstance(document, dict):
        raise ModelError(f"{path}", "not a JSON object", _REMEDY)
    return document


def _special(*sources: Mapping[str, Any]) -> dict[str, Any]:
    """Return the special tokens' texts by their names in templates; the first source that has a name decides."""
    found: dict[str, Any] = {}
    for name in _SPECIAL:
        text = next((text for source in sources if (text := _content(source.get(name))) is not None), None)
        if text is not None:
            found[name] = text
    name = "additional_special_tokens"
    more: Any = next((source[name] for source in sources if name in source), [])
    texts = [_content(entry) for entry in more] if isinstance(more, list) else []
    if texts and None not in texts:
        found[name] = texts
    return found


def _content(entry: Any) -> str | None:
    content = entry.get("content") if isinstance(entry, dict) else entry
    return content if isinstance(content, str) else None
