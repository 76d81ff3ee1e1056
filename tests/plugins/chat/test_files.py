"""Where a model's template is looked for, and what is wrong with files that are broken."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from chat_parts import tokenizer, write
from infeng_chat.rendering.files import TemplateFiles
from infeng_chat.template import ChatPrompt, ChatTemplate, Delta, OutputParser, ToolDelta, find

from infeng_core.api import ModelError, RequestError


def written(directory: Path, **files: Any) -> Path:
    """Write files, a dot in a name as two underscores."""
    for name, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (directory / name.replace("__", ".")).write_text(text)
    return directory


def test_the_first_file_with_a_template_is_used(tmp_path: Path) -> None:
    assert TemplateFiles.read(tmp_path).is_plain
    assert TemplateFiles.read(written(tmp_path, tokenizer_config__json={"chat_template": "a"})).text == "a"
    assert TemplateFiles.read(written(tmp_path, chat_template__json={"chat_template": "b"})).text == "b"
    assert TemplateFiles.read(written(tmp_path, chat_template__jinja="c")).text == "c"
    written(tmp_path, mine__txt="d", mine__json={"chat_template": "e"})
    assert TemplateFiles.read(tmp_path, tmp_path / "mine.txt").text == "d"
    assert TemplateFiles.read(tmp_path, tmp_path / "mine.json").text == "e"


def test_one_of_several_templates_may_be_for_tools(tmp_path: Path) -> None:
    named = [
        {"name": "default", "template": "a"},
        {"name": "tool_use", "template": "b"},
        {"name": "x", "template": "c"},
    ]
    found = TemplateFiles.read(written(tmp_path, tokenizer_config__json={"chat_template": named}))
    assert (found.text, found.with_tools) == ("a", "b")
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("d")
    assert TemplateFiles.read(written(tmp_path, chat_template__jinja="c")).with_tools == "d"


def test_a_converted_model_has_the_template_for_tools_beside_the_other(tmp_path: Path) -> None:
    (tmp_path / "chat_template.tool_use.jinja").write_text("d")
    found = TemplateFiles.read(written(tmp_path, chat_template__jinja="c"))
    assert (found.text, found.with_tools) == ("c", "d")


def test_special_tokens_are_texts_or_objects_also_in_a_separate_file(tmp_path: Path) -> None:
    config = {
        "bos_token": {"content": "<s>"},
        "eos_token": None,
        "additional_special_tokens": ["<a>", {"content": "<b>"}],
    }
    written(tmp_path, tokenizer_config__json=config, special_tokens_map__json={"eos_token": "</s>", "bos_token": "no"})
    assert TemplateFiles.read(tmp_path).special == {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "additional_special_tokens": ["<a>", "<b>"],
    }


@pytest.mark.parametrize(
    "files",
    [
        {"tokenizer_config__json": "{"},
        {"tokenizer_config__json": []},
        {"tokenizer_config__json": {"chat_template": 5}},
        {"tokenizer_config__json": {"chat_template": []}},
        {"tokenizer_config__json": {"chat_template": ["x"]}},
        {"tokenizer_config__json": {"chat_template": [{"name": "default"}]}},
        {"chat_template__json": {}},
        {"chat_template__json": "{"},
        {"chat_template__jinja": "x" * ((1 << 20) + 1)},
    ],
)
def test_a_broken_file_is_a_model_error(files: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ModelError):
        TemplateFiles.read(written(tmp_path, **files))


def test_a_template_that_is_missing_or_not_a_text_is_a_model_error(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(ModelError, match="UTF-8"):
        TemplateFiles.read(tmp_path)
    with pytest.raises(ModelError, match="no such file"):
        TemplateFiles.read(tmp_path, tmp_path / "missing.jinja")


def test_find_returns_a_template_that_renders_and_parses(tmp_path: Path) -> None:
    directory = write(tmp_path, "{{ messages[0].content }}<|im_end|>")
    found: ChatTemplate = find(directory, tokenizer(directory))
    prompt = found.prompt([{"role": "user", "content": "x"}])
    parser: OutputParser = found.parser(prompt)
    assert isinstance(prompt, ChatPrompt)
    assert [*parser.push("y"), *parser.finish()] == [Delta(content="y")]
    assert ToolDelta(0).arguments == ""


class Numbers:
    """A tokenizer of token ids in decimals."""

    vocab_size, bos_id, eos_id = 100, None, None

    def encode(self, texts: Sequence[str], *, parse_special: bool | None = None) -> list[list[int]]:
        if not all(text.isdigit() or not text for text in texts):
            raise RequestError("prompt", "it is not a token id", "give ids")
        return [[int(text)] if text else [] for text in texts]

    decode = detokenizer = None


def test_a_tokenizer_that_takes_no_text_fails_at_prompts_not_at_the_start(tmp_path: Path) -> None:
    found = find(tmp_path, Numbers())  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="not a token id"):
        found.prompt([{"role": "user", "content": "x"}])
