"""What an activated adapter (aLoRA) may change, and of which tokens its invocation consists."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import NoReturn

from infeng_core.api.adapters import TargetModule
from infeng_core.api.formats import ModelConfig

OF_MIXTURE = re.compile(r"\.(router|shared_gate|shared\..*)$")  # packed tensors


def check_activated(
    invocation: tuple[int, ...],
    targets: Iterable[TargetModule],
    base: ModelConfig,
    fail: Callable[[str, str], NoReturn],
) -> None:
    """Call ``fail(why, remedy)`` if an invocation is not of the base's vocabulary, or PEFT activates no such target.

    It has no activated embeddings. Modules of a mixture read rows that have lost their positions.
    """
    if (token := max(invocation, default=0)) >= base.vocab:
        remedy = "load it over the model that it was trained on"
        fail(f"has token {token}, the base has {base.vocab} tokens", remedy)
    for site in targets if invocation else ():
        if site.kind == "embedding" or site.is_expert or OF_MIXTURE.search(site.tensor):
            kind = "embeddings" if site.kind == "embedding" else "modules of a mixture of experts"
            why = f"is set, and {site.target} is changed: PEFT does not define activated adapters of {kind}"
            fail(why, "train on other linear layers")
