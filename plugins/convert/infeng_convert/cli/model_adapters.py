"""``infeng models ADAPTER --base MODEL``: describes adapters, and whether a model can run them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infeng_core.api import UsageError, say
from infeng_core.api.formats import gigabytes

if TYPE_CHECKING:
    from infeng_peft.api import AdapterSurvey

    from infeng_core.api import EngineConfig, Plugins


def inspect_adapters(paths: Sequence[Path], base: str, config: EngineConfig, plugins: Plugins, *, as_json: bool) -> int:
    """Print a description of each adapter; return 1 if one does not fit ``base``, else 0."""
    if not paths:
        raise UsageError("--base", "no adapter is named", "give PATH: infeng models ADAPTER --base MODEL")
    try:
        from infeng_peft.api import survey_adapter
    except ModuleNotFoundError:
        raise UsageError("--base", "adapters are packed by the wheel infeng-peft", "pip install infeng-peft") from None

    from infeng_convert.survey import shape_of
    from infeng_core.api.formats import choose, format_lookup

    lookup = format_lookup(plugins)
    shape = shape_of(base, choose(config, lookup), lookup, plugins)
    found = [survey_adapter(str(path.expanduser()), shape, config.adapters.dtype, plugins) for path in paths]
    if as_json:
        print(json.dumps([facts(one, base) for one in found], indent=2))
    else:
        say(*(line for one in found for line in report(one, base)))
    return int(any(one.why_not for one in found))


def facts(one: AdapterSurvey, base: str) -> dict[str, Any]:
    """Return a survey as plain data."""
    plain = {key: value for key, value in vars(one).items() if key != "nbytes"}
    return plain | {
        "path": str(one.path),
        "ranks": list(one.ranks),
        "invocation": list(one.invocation),
        "targets": dict(one.targets),
        "bytes": one.nbytes,
        "base": base,
        "fits": not one.why_not,
    }


def report(one: AdapterSurvey, base: str) -> Iterator[str]:
    """Yield the lines about one adapter."""
    yield f"{one.path}"
    if one.ranks or one.targets:
        yield f"  rank       {', '.join(map(str, one.ranks)) or 'none'}"
        yield f"  targets    {', '.join(f'{name} x {count}' for name, count in one.targets.items())}"
        yield f"  packed     {gigabytes(one.nbytes)} as {one.dtype}"
    if one.invocation:
        yield f"  invocation {', '.join(map(str, one.invocation))} (token ids from which on it acts)"
    if one.base_name:
        yield f"  trained on {one.base_name}"
    if one.why_not:
        yield f"  fits       no: {one.why_not}"
    elif one.needs_this_very_base:
        yield f"  fits       {base}, if it was packed for this model in this format"
    else:
        yield f"  fits       {base}"
