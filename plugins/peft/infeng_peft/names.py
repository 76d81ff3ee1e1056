"""The names of a model's modules in an adapter's files and configuration.

They are the names that modules had in memory during training: inside a multimodal model or alone, and since
transformers 5 for some families others than in checkpoints (its ``conversion_mapping.py``). A family lists these as
``MODULES``: ``{"block_sparse_moe.gate": "mlp.gate"}``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from infeng_convert.api import config_keys, outside, prefixes

LAYER = re.compile(r"model\.layers\.\d+\.")


class Names:
    """The names of one file, from which its naming scheme is detected."""

    def __init__(self, stored: Collection[str], before: str, family: str) -> None:
        """Detect the scheme from the stored names; before: a prefix of all of them."""
        self._prefixes = prefixes(stored, before)
        renamed: Mapping[str, str] = getattr(config_keys()[family], "MODULES", {})
        is_renamed = any(
            _has(name, _module(new)) and not _has(name, old) for old, new in renamed.items() for name in stored
        )
        self._renamed = renamed if is_renamed else {}

    def outside(self, name: str) -> str:
        """Return the name of a module, parameter or tensor in the file and its configuration."""
        layer = LAYER.match(name)
        for old, new in self._renamed.items() if layer else ():
            assert layer is not None
            own = name[layer.end() :]
            if f"{own}.".startswith(f"{old}."):
                name = layer[0] + new + own[len(old) :]
                break
        return outside(name, self._prefixes)


def _has(name: str, module: str) -> bool:
    return f".{module}." in name


def _module(name: str) -> str:
    """Return the module of a parameter of all experts, or the module itself."""
    return name.rpartition(".")[0] if name.endswith("_proj") else name
