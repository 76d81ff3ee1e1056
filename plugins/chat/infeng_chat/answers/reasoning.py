"""Where models write down their reasoning."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Tags around reasoning."""

    open: str
    close: str

    def opened_by(self, prompt: str) -> bool:
        """Return whether a prompt ends inside of it."""
        return prompt.rstrip().endswith(self.open.rstrip())

    def opened_in(self, answer: str) -> bool:
        """Return whether an answer that is to be continued ends inside of it."""
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
"""The first whose tags both stand in a template is the model's."""


def detected(source: str) -> Reasoning | None:
    """Return the tags that a template writes; it may build one of them from parts."""
    return next((family for family in FAMILIES if family.open in source and family.close in source), None)
