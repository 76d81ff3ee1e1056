"""A model family: a tiny checkpoint made by its own layout converts, loads and runs, alike both times."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from infeng_convert.api import parse_config

from infeng_core.api import Engine
from infeng_core.api.formats import decoder, families, use_families
from infeng_kit import tiny
from infeng_kit.checks.engine import tokens
from infeng_kit.report import failed, ok

if TYPE_CHECKING:
    from infeng_kit.child import Teller
    from infeng_kit.plan import Plan


def check(plan: Plan, name: str, teller: Teller) -> None:
    """Report whether a checkpoint with the tensors that the family names runs."""
    part = f"family {name}"
    use_families(plan.plugins())
    family = families()[name]
    teller.begin(f"the graph of family {name}")
    words = _words(plan, name, family)
    config = parse_config(words, "config.json")
    ops = len(family.graph(config).ops)
    layout = family.weights(config) if hasattr(family, "weights") else decoder(config)
    teller.begin(f"a checkpoint of family {name}")
    folder = Path(plan.folder) / f"family-{name}"
    tiny.write(folder, words, _checkpoint(layout))
    runs = []
    for format in ("f32", "f32", "int8-row"):
        teller.begin(f"an engine over family {name} in {format}")
        with Engine(folder, overrides=plan.settings(model__format=format, model__formats={})) as engine:
            runs.append(tokens(engine))
    if runs[0] == runs[1]:
        text = f"a checkpoint with its {len(layout.tensors)} packed tensors and {ops} ops converts and runs"
        teller.line(ok(part, text))
    else:
        teller.line(
            failed(part, "two engines give different tokens", "let graph() and weights() depend on config only")
        )


def _words(plan: Plan, name: str, family: Any) -> dict[str, Any]:
    """Return config.json of a tiny model of the family, with the keys that its project gives."""
    names = {"architectures": list(family.ARCHITECTURES[:1])} if family.ARCHITECTURES else {}
    rest = {key: value for key, value in tiny.CONFIG.items() if key != "architectures"}
    return {**rest, "model_type": name, **names, **plan.options.get("families", {}).get(name, {})}


def _checkpoint(layout: Any) -> dict[str, Any]:
    """Return random tensors by the names from which the layout takes them."""
    random, found = np.random.default_rng(0), {}
    for spec in layout.tensors:
        for place in spec.parts:
            shape = (max(place.of, place.begin + place.rows), spec.k)
            found[place.source] = tiny.random_tensor(random, shape, 3.0 if spec.name == "embed" else 1.0)
    for spec in layout.vectors:
        for place in spec.parts:
            found[place.source] = tiny.random_tensor(random, (max(place.of, place.begin + place.rows),))
    return found
