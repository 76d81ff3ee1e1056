"""Configuration and tokenizer files of a model directory: what lies beside the weights."""

from __future__ import annotations

import re
from pathlib import Path

from infeng_core.files import model_file, read_bytes

MAX_SIDE_FILE = 256 << 20
CONFIG_FILES = ("config.json", "generation_config.json")
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
)
CHAT_TEMPLATES = "additional_chat_templates/*.jinja"
"""Named chat templates, such as tool_use ..."""
CONVERTED_TEMPLATES = "chat_template.*.jinja"
"""... and where they lie in a converted model, which has no folders."""

_NAME = re.compile(r"[\w-]{1,64}")
_NAMED = re.compile(r"chat_template\.[\w-]{1,64}\.jinja")


def side_files(directory: Path) -> dict[str, bytes]:
    """Return the config and tokenizer files that a converted model keeps, contents by name.

    Named chat templates come from additional_chat_templates/NAME.jinja as chat_template.NAME.jinja.
    Links are followed as ``files.model_file`` says; raises ModelError.
    """
    found: dict[str, bytes] = {}
    paths = {name: name for name in (*CONFIG_FILES, *TOKENIZER_FILES)}
    paths |= {
        path.name: path.name for path in sorted(directory.glob(CONVERTED_TEMPLATES)) if _NAMED.fullmatch(path.name)
    }
    named = (path for path in sorted(directory.glob(CHAT_TEMPLATES)) if _NAME.fullmatch(path.stem))
    paths |= {f"chat_template.{path.name}": f"{path.parent.name}/{path.name}" for path in named}
    for name, place in paths.items():
        if (directory / place).is_file():
            found[name] = read_bytes(model_file(directory, place), MAX_SIDE_FILE)
    return found
