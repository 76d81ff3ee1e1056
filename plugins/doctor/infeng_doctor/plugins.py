"""`infeng plugins list|info|why|lock`: shows installed plugins, and why a kernel is or is not used.

Other plugins bring further verbs through the hook ``infeng_plugins_verbs``.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from infeng_core.api import (
    BACKENDS,
    Command,
    Plugins,
    UsageError,
    add_config_options,
    config_from,
    load_config,
    say,
    unknown_key_remedy,
)
from infeng_core.api.inspection import HOOKS, OPS, REASONS, Decision
from infeng_core.api.kernels import Problem, Selector, describe
from infeng_doctor import facts as found
from infeng_doctor.hookspecs import OF_WHEELS, infeng_plugins_verbs
from infeng_doctor.table import notes, table

if TYPE_CHECKING:
    from infeng_core.api.kernels import Fused


class PluginsCommand:
    """The command."""

    name = "plugins"
    help = "list plugins, show one, explain the choice of a kernel, write manifest.lock"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the four verbs."""
        verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
        listing = verbs.add_parser("list", help="every plugin with its state; nothing is loaded")
        info = verbs.add_parser("info", help="all about one plugin; nothing is loaded")
        info.add_argument("name", metavar="NAME")
        why = verbs.add_parser("why", help="every candidate for an operation, with the reason for or against it")
        why.add_argument("op", metavar="OP", help=f"{', '.join(OPS)}, or an op of a plugin")
        why.add_argument("--model", metavar="DIR", help="use the sizes of this model instead of a 1.1B Llama's")
        lock = verbs.add_parser("lock", help="write a model's kernels and all plugins to a file for kernels.lock")
        lock.add_argument("model", metavar="MODEL", nargs="?", help="default: the manifest's model.path")
        lock.add_argument("-o", "--output", metavar="FILE", default="manifest.lock")
        for verb, run in ((listing, self.list), (info, self.info), (why, self.why), (lock, self.lock)):
            add_config_options(verb)
            verb.set_defaults(verb_run=run)
            if verb is not lock:
                verb.add_argument("--json", action="store_true", help="for machines")
        for brought in _brought():
            further = verbs.add_parser(brought.name, help=brought.help, description=brought.help)
            brought.configure(further)
            further.set_defaults(verb_run=brought.run)

    def run(self, arguments: argparse.Namespace) -> int:
        """Run the chosen verb."""
        status: int = arguments.verb_run(arguments)
        return status

    def list(self, arguments: argparse.Namespace) -> int:
        """Print one line per plugin."""
        facts = [found.plugin_summary(plugin) for plugin in Plugins.discover(config_from(arguments)).manifests]
        if arguments.json:
            print(json.dumps(facts, indent=2))
            return 0
        rows = []
        for item in facts:
            provides = ", ".join(_count(len(names), kind) for kind, names in item["provides"].items())
            rows.append((item["name"], item["version"] or "-", item["state"], provides or "-", item["origin"]))
        say(*table(rows))
        for item in facts:
            if item["state"] != "ready":
                say("", f"{item['name']}: {item['reason']}")
        if said := list(notes(facts)):
            say("", "notes", *said)
        return 0

    def info(self, arguments: argparse.Namespace) -> int:
        """Print one plugin."""
        facts = found.plugin_details(Plugins.discover(config_from(arguments)).plugin(arguments.name))
        if arguments.json:
            print(json.dumps(facts, indent=2))
            return 0
        for key in ("name", "version", "description", "origin", "file", "state", "reason", "python", "sha256"):
            if facts.get(key):
                say(f"{key:12}{facts[key]}")
        requires = facts.get("requires") or {}
        if requires.get("arch") or requires.get("features"):
            say(f"{'requires':12}{' '.join(filter(None, (requires['arch'], *requires['features'])))}")
        for key, value in (facts.get("library") or {}).items():
            say(f"{'library':12}{key} {value}")
        for kind, names in facts["provides"].items():
            if kind != "kernels":
                say(f"{kind.replace('_', ' '):12}{' '.join(names)}")
        if facts.get("kernels"):
            say("kernels", *table([(k["name"], k["op"], " ".join(k["features"])) for k in facts["kernels"]]))
        if facts["notes"]:
            say("notes", *notes([facts]))
        return 0

    def why(self, arguments: argparse.Namespace) -> int:
        """Print every candidate for an operation."""
        from infeng_inspect.api import Outline, shape_and_formats

        from infeng_core.api.engines import limits_of
        from infeng_core.api.formats import format_lookup, use_families

        config = config_from(arguments)
        plugins = Plugins.discover(config)
        ops = [*OPS, *plugins.names("ops")]
        if arguments.op not in ops:
            raise UsageError(f"operation {arguments.op}", "unknown", unknown_key_remedy(arguments.op, ops))
        use_families(plugins)
        selector = Selector(plugins, config, plugins.cpu)
        lookup = format_lookup(plugins)
        shape, formats = shape_and_formats(arguments.model, config, lookup, plugins)
        limits, _ = limits_of(config, shape, plugins.get(BACKENDS, "native"))
        binder = Outline(shape, formats, lookup, config, selector, limits).bound()
        decisions = {asked: selector.decide(asked) for asked in binder.asked if asked.op == arguments.op}
        steps = binder.fused_steps(arguments.op)
        selector.close()
        if arguments.json:
            print(json.dumps([found.decision(item) for item in decisions.values()], indent=2))
        elif decisions:
            say(*_why(list(decisions.values())), *_fusing(steps))
        else:
            say(f"this model has no {arguments.op}; --model names another one")
        return 0

    def lock(self, arguments: argparse.Namespace) -> int:
        """Assemble the engine and write its bindings."""
        from infeng_core.api import Engine

        config = config_from(arguments)
        config = replace(config, kernels=replace(config.kernels, lock=None))  # the old lock does not bind the new one
        model = arguments.model or config.model.path
        if model is None:
            raise UsageError("infeng plugins lock", "no model", "name one, or set model.path in the manifest")
        output = Path(arguments.output)
        if output.is_dir() or not output.parent.is_dir():
            raise UsageError(f"{output}", "no file can be written there", "name a file in a folder that exists")
        with Engine(model, config=config) as engine:
            text = found.lock(engine.selector, Plugins.discover(config))
        temporary = output.with_name(output.name + ".tmp")
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(output)
        say(f"wrote {output}; use it with kernels.lock, or --set kernels.lock={output}")
        return 0


class _Missing:
    """A verb whose wheel is not installed."""

    def __init__(self, name: str, wheel: str) -> None:
        """Name the wheel."""
        self.name, self._wheel = name, wheel
        self.help = f"needs the wheel {wheel}"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Take any arguments."""
        parser.prefix_chars = "\0"
        parser.add_argument("words", nargs="*", help=argparse.SUPPRESS)

    def run(self, arguments: argparse.Namespace) -> int:
        """Raise UsageError."""
        raise UsageError(f"infeng plugins {self.name}", "no plugin brings it", f"install the wheel {self._wheel}")


def _brought() -> list[Command]:
    """Return the verbs of other plugins, and one for each whose wheel is missing."""
    answers = Plugins.discover(load_config()).answers(infeng_plugins_verbs).values()
    found = {verb.name: verb for verbs in answers for verb in verbs}
    missing: dict[str, Command] = {name: _Missing(name, wheel) for name, wheel in OF_WHEELS.items()}
    return list((missing | found).values())


def _why(decisions: list[Decision]) -> Iterator[str]:
    for group, first in found.by_outcome(decisions):
        yield from _described(item.problem for item in group)
        mark = {True: ">", False: " "}
        rows = [
            (mark[c is first.chosen], f"{c.library}/{c.kernel}", c.reason.code, str(c.reason))
            for c in first.candidates
            if c.reason.code != "declines"
        ]
        yield from table(rows)
        others = [f"{c.library}/{c.kernel}" for c in first.candidates if c.reason.code == "declines"]
        if others:
            yield f"    {REASONS['declines']}: {', '.join(others)}"
        if first.chosen is None:
            yield "    no kernel fits"
        yield ""
    if not decisions:
        yield "no problem of this kind under this manifest"


def _fusing(found: Sequence[Fused]) -> Iterator[str]:
    """Yield what each op takes of the steps behind it, and why not the next one."""
    if found:
        yield "steps behind it"
    for one in found:
        times = f" x{one.times}" if one.times > 1 else ""
        yield f"    {one.detail}{times}: takes {' + '.join(one.taken) or 'none'}"
        if one.left:
            yield f"        leaves {' + '.join(one.left)} to an op of their own: {one.why}"


def _count(count: int, kind: str) -> str:
    known = {hook.kind: hook.singular for hook in HOOKS}
    one = known.get(kind, kind.removesuffix("s").replace("_", " "))
    return f"{count} {one if count == 1 else kind.replace('_', ' ')}"


def _described(problems: Iterable[Problem]) -> list[str]:
    """Return descriptions; problems that differ only in rows share a line: ``rope, rows 1 and 2-8 and 9-64, ...``."""
    groups: dict[str, tuple[Problem, list[str]]] = {}
    for problem in problems:
        low, high = problem.rows
        group = groups.setdefault(describe(problem, "*"), (problem, []))
        group[1].append(str(low) if low == high else f"{low}-{high}")
    return [describe(problem, " and ".join(rows)) for problem, rows in groups.values()]
