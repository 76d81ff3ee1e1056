"""The tags between which models write their reasoning."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Tags around reasoning."""

    open: str
    close: str

    def opened_by(self, prompt: str) -> bool:
        """Return whether a prompt ends within reasoning."""
        return prompt.rstrip().endswith(self.open.rstrip())

    def opened_in(self, answer: str) -> bool:
        """Return whether an answer to be continued ends within reasoning."""
        return answer.rfind(self.open) > answer.rfind(self.close)


FAMILIES = (
    Reasoning("<think>", "</think>"),  # Qwen, DeepSeek, GLM, SmolLM, Granite, ...
    Reasoning("<seed:think>", "</seed:think>"),
    Reasoning("<|channel>thought", "<channel|>"),  # Gemma
    Reasoning("<|inner_prefix|>", "<|inner_suffix|>"),  # Apertus
    Reasoning("<|START_THINKING|>", "<|END_THINKING|>"),  # Command
    Reasoning("[THINK]", "[/THINK]"),  # Magistral
    Reasoning("<thinking>", "</thinking>"),
    Reasoning("<reasoning>", "</reasoning>"),
)
"""Known tags; a model's are the first ones of which a template contains both."""


def detected(source: str) -> Reasoning | None:
    """Return the reasoning tags of a template, which may assemble one of them from parts."""
    return next((family for family in FAMILIES if family.open in source and family.close in source), None)
