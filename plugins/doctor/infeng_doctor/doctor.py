"""`infeng doctor`: reports the machine, the plugins with their states, and the origin of every setting."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from infeng_core.api import EngineConfig, Plugins, add_config_options, config_from, say
from infeng_doctor import facts as found
from infeng_doctor.table import notes, table


class Doctor:
    """The command."""

    name = "doctor"
    help = "report the machine, the plugins with their states, and the origin of every setting"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments."""
        parser.add_argument("--model", metavar="M", help="also load this model and show where its memory lies")
        add_config_options(parser)
        parser.add_argument("--json", action="store_true", help="for machines")

    def run(self, arguments: argparse.Namespace) -> int:
        """Print the report."""
        config = config_from(arguments, model__path=arguments.model)
        model = loaded(config) if arguments.model is not None else None
        facts = found.doctor(Plugins.discover(config), model["weight_bytes"] if model is not None else None)
        if model is not None:
            facts["model"] = model
        if arguments.json:
            print(json.dumps(facts, indent=2))
        else:
            say(*report(facts))
        return 0


def loaded(config: EngineConfig) -> dict[str, Any]:
    """Load the model of ``config``, generate one token, and return the memory in use, in bytes."""
    from infeng_inspect.api import by_format, huge_pages, peak_rss

    from infeng_core.api import Engine, SamplingParams

    begin = time.perf_counter()
    with Engine(config=config) as engine:
        seconds = time.perf_counter() - begin
        engine.generate([[0]], SamplingParams(temperature=0.0, max_tokens=1))  # touches the scratch memory
        pages = huge_pages()
        return {
            "path": config.model.path,
            "load_s": seconds,
            "formats": by_format(engine.model.formats_used),
            "weight_bytes": engine.model.nbytes,
            "kv_bytes": engine.executable.kv_bytes,
            "kv_tokens": engine.limits.tokens,
            "context": engine.limits.context,
            "scratch_bytes": engine.executable.scratch_bytes,
            "peak_rss_bytes": peak_rss(),
            "huge_pages": {"resident": pages.resident, "huge": pages.huge} if pages else None,
        }


def report(facts: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines for people."""
    machine = facts["machine"]
    memory, pages, cache = machine["memory"], machine["huge_pages"], facts["cache"]
    contract = f"kernel ABI {facts['abi']}, numerics {facts['numerics']}"
    yield f"infeng {facts['version']}, {contract}, Python {facts['python']}, {machine['system']}"
    yield ""
    yield f"processor   {machine['model']} ({machine['arch']})"
    yield f"cores       {_cores(machine)}"
    yield f"workers     {_workers(facts['workers'])}"
    yield f"  on CPUs   {_cpus(facts['workers'])}"
    yield f"numa        {_numa(machine['topology']['nodes'])}"
    yield f"  pages     {_pages(facts['workers']['memory'])}"
    yield f"caches      {', '.join(f'{name} {size(value)}' for name, value in machine['caches'].items())}"
    yield f"features    {' '.join(machine['features'])}"
    for name, why in machine["masked"].items():
        yield f"  masked    {name}: {why}"
    limit = f", limit {size(memory['limit'])}" if "limit" in memory else ""
    if "total" in memory:
        yield f"memory      {size(memory['total'])}, {size(memory.get('available', 0))} available{limit}"
    yield f"huge pages  {_huge_pages(pages)}"
    if "model" in facts:
        yield f"model       {_model(facts['model'])}"
        yield f"  takes     {_takes(facts['model'])}"
        for format, names in facts["model"]["formats"].items():
            yield f"  {format:9} {', '.join(names)}"
    yield f"cache       {cache['path']} ({size(cache['bytes'])}{'' if cache['writable'] else ', NOT writable'})"
    yield ""
    yield "plugins"
    yield from table([(p["name"], p["version"] or "-", p["state"], p["reason"], p["origin"]) for p in facts["plugins"]])
    yield from notes(facts["plugins"])
    yield ""
    yield "kernel libraries, in the manifest's order"
    yield from table(
        [
            (lib["name"], f"{lib['kernels']} kernels", lib["state"], lib["reason"], (lib["sha256"] or "-")[:16])
            for lib in facts["libraries"]
        ]
    )
    yield from notes(facts["libraries"])
    for lib in facts["libraries"]:
        if (device := lib["device"]) is not None:
            found = f"computes on {device['name']}" if device["name"] else f"has no device: {device['why']}"
            room = f", {size(device['free'])} of {size(device['total'])} free" if device["name"] else ""
            yield f"  {lib['name']} {found}{room}"
    yield ""
    yield "backends, in the order of their trial"
    yield from table(
        [
            (one["name"], "wanted" if one["wanted"] else "", one["device"] or "cannot run", one["why"])
            for one in facts["backends"]
        ]
    )
    if facts["missing_wheels"]:
        yield f"  kernels for this processor are not installed: pip install {' '.join(facts['missing_wheels'])}"
    yield ""
    yield "settings"
    yield from table([(name, show(item["value"]), item["from"]) for name, item in facts["settings"].items()])


def _cores(machine: Mapping[str, Any]) -> str:
    found = machine["topology"]
    text = str(found.get("cores", machine["cores"]))
    if found.get("threads_per_core", 1) > 1:
        text += f" with {found['threads_per_core']} hardware threads each (a core's second adds little)"
    if found.get("online", found["allowed"]) > found["allowed"]:
        text += f", {found['allowed']} of {found['online']} hardware threads allowed"
    if found.get("sockets", 1) > 1:
        text += f", in {found['sockets']} sockets"
    return text + (f", limited to {machine['quota']:g} cores' worth of time" if machine["quota"] else "")


def _workers(workers: Mapping[str, Any]) -> str:
    barrier, pinned = workers["barrier_us"], "pinned" if workers["pinned"] else "not pinned"
    return (
        f"{workers['count']}, {pinned}; a barrier takes {barrier['median']:.1f} us, "
        f"in 99 of 100 cases at most {barrier['p99']:.1f} us"
    )


def _cpus(workers: Mapping[str, Any]) -> str:
    text = ranges(workers["cpus"]) + (", in this order" if workers["pinned"] else ", shared by all workers")
    return "; ".join([text, *workers["why"]])


def _numa(nodes: Sequence[Mapping[str, int]]) -> str:
    if not nodes:
        return "unknown"
    if len(nodes) == 1:
        return "1 node: nothing to place"
    each = "; ".join(
        f"{node['node']}: {node['cpus']} hardware threads, {size(node.get('memory', 0))}" for node in nodes
    )
    return f"{len(nodes)} nodes ({each})"


def _pages(memory: Mapping[str, Any]) -> str:
    nodes = ", ".join(map(str, memory["nodes"]))
    text = {
        "prefer": f"on node {nodes}, elsewhere when it is full",
        "interleave": f"in turn on the nodes {nodes}",
        "first-touch": "where the system puts them, on the node that touches them first",
    }[memory["policy"]]
    return f"weights, cache and adapters: {text}{', locked' if memory['lock'] else ''}"


def ranges(numbers: Iterable[int]) -> str:
    """Return numbers in their order, runs of three and more as ``0-7``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)


def _model(model: Mapping[str, Any]) -> str:
    pages, peak = model["huge_pages"], model["peak_rss_bytes"]
    text = f"{model['path']}: loaded in {model['load_s']:.2f} s"
    if pages and pages["resident"]:
        share = pages["huge"] / pages["resident"]
        text += f"; huge pages back {share:.0%} of {size(pages['resident'])} of weights, cache and scratch"
    return text + (f"; {size(peak)} at most" if peak else "")


def _takes(model: Mapping[str, Any]) -> str:
    each = model["kv_bytes"] / model["kv_tokens"] / 1024
    cache = f"cache {size(model['kv_bytes'])} for {model['kv_tokens']} tokens of {each:.1f} KiB each"
    scratch = f"scratch {size(model['scratch_bytes'])}"
    return f"weights {size(model['weight_bytes'])}, {cache}, {scratch}; context {model['context']} tokens"


def _huge_pages(pages: Mapping[str, Any]) -> str:
    state = pages.get("transparent")
    if state is None:
        return "unknown"
    advice = ": weights get none; as root: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"
    return f"transparent {state}{advice if state == 'never' else ''}, defrag {pages.get('defrag', 'unknown')}"


def show(value: object) -> str:
    """Return a setting's value on one line."""
    return value if isinstance(value, str) else json.dumps(value)


def size(nbytes: int) -> str:
    """Return bytes in a readable unit: 1.5 GiB."""
    amount, units = float(nbytes), ["B", "KiB", "MiB", "GiB", "TiB"]
    while amount >= 1024 and len(units) > 1:
        amount /= 1024
        units.pop(0)
    return f"{amount:.0f} {units[0]}" if amount >= 10 or units[0] == "B" else f"{amount:.1f} {units[0]}"
