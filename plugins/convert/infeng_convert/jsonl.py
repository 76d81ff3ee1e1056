"""The text of a line of JSONL, one document, for calibration and for measuring."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_FORMS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("question", "answer"), "Question: {question}\nAnswer: {answer}"),
    (("prompt", "canonical_solution"), "{prompt}{canonical_solution}"),
    (("text", "code"), "{text}\n{code}"),
    (("text",), "{text}"),
    (("prompt",), "{prompt}"),
)
"""Keys of an object, and the template of its text: GSM8K, HumanEval, MBPP, plain texts."""

DOCUMENT_KEYS = tuple(keys for keys, _ in _FORMS)
"""Keys whose strings together make a text; the first group that an object has decides."""


def document_text(value: Any) -> str | None:
    """Return the text of a line's value: a string, or an object with known keys; None for any other value."""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        for keys, form in _FORMS:
            if all(isinstance(value.get(key), str) for key in keys):
                return form.format(**{key: value[key] for key in keys})
    return None
