"""`infeng bench hybrid`: a mixture of experts on a CPU and a GPU together, simulated."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from infeng_bench import options
from infeng_bench.models import model_shape
from infeng_bench.options import Column
from infeng_bench.reports import results

from infeng_core.api import Plugins
from infeng_core.api.formats import format_lookup
from infeng_simulate import hybrid, mixture
from infeng_simulate.hybrid import POLICIES, Machine

NAME = "hybrid"

TABLE = (
    Column("rows", "rows"),
    Column("policy", "policy"),
    Column("tokens/s", "tokens_per_s", ".1f"),
    Column("ms a step", "step_ms", ".2f"),
    Column("CPU", "cpu_share", ".0%"),
    Column("GPU", "gpu_share", ".0%"),
    Column("PCIe", "pcie_share", ".0%"),
    Column("MB moved", "moved_bytes", ".0f", 1e-6),
    Column("in cache", "hit_share", ".0%"),
)


def configure(parser: argparse.ArgumentParser) -> None:
    for name, default, what in (("pcie", "25", "the link"), ("dram", "90", "memory"), ("hbm", "1000", "GPU memory")):
        options.add(parser, f"--{name}", _giga, default, "GB/s", f"bandwidth of {what} that is reached")
    for name, default in (("cpu", "3"), ("gpu", "100")):
        help = f"int8 multiply-adds per second that the {name.upper()} reaches, in tera"
        options.add(parser, f"--{name}-macs", _tera, default, "TMAC/s", help)
    options.add(parser, "--gpu-experts", options.natural, 0, "N", "experts of each layer that the GPU has room for")
    options.add(parser, "--rows", options.counts, "1,4,16,64,256", "R,R", "rows of a step")
    told = "; ".join(f"{name}: {what}" for name, what in POLICIES.items())
    options.add(parser, "--policy", _policies, ",".join(POLICIES), "P,P", told)
    options.add(parser, "--skew", options.up_to(8), 1.1, "S", "an expert of rank r is chosen with weight 1 / (r + 1)^S")
    options.add(
        parser, "--repeat", options.up_to(1), 0.5, "SHARE", "of a row's experts that its last token had chosen too"
    )
    options.add(parser, "--steps", options.positive, 64, "N", "steps of each number of rows")
    options.add_seed(parser, "the choices of experts")
    options.add_run(parser, "a model whose sizes are used: directory or hub name")


def run(arguments: argparse.Namespace) -> int:
    """Simulate every number of rows with every policy, print and write."""
    config = options.config(arguments)
    lookup = format_lookup(Plugins.discover(config))
    shape = model_shape.model_shape(arguments, config, lookup)
    sizes = mixture.mixture(shape, lookup)
    machine = Machine(arguments.pcie, arguments.dram, arguments.hbm, arguments.cpu_macs, arguments.gpu_macs)
    slots = min(arguments.gpu_experts, sizes.experts)
    measured = []
    for rows in options.progress(arguments.rows, NAME):
        drawn = hybrid.draw(sizes, rows, arguments.steps, arguments.skew, arguments.repeat, arguments.seed)
        for policy in arguments.policy:
            found = hybrid.simulate(policy, *drawn, sizes, machine, slots, arguments.seed)
            measured.append({"rows": rows, "policy": policy, **found})
    result = results.record(
        NAME,
        {"measurements": measured},
        model=shape.name,
        format=shape.format,
        seed=arguments.seed,
        mixture=asdict(sizes),
        hybrid={**asdict(machine), "gpu_experts": slots, "skew": arguments.skew, "repeat": arguments.repeat},
        steps=arguments.steps,
    )
    each, room = sizes.expert_bytes / 1e6, sizes.layers * slots * sizes.expert_bytes / 1e9
    facts = f"{sizes.layers} layers of {sizes.experts} experts of {each:.2f} MB, {sizes.chosen} for a row"
    lines = [f"{shape.name}: {facts}; {room:.2f} GB of experts on the GPU"]
    return options.deliver(result, arguments, [*lines, *options.columns(options.table(TABLE, measured))])


def _policies(text: str) -> list[str]:
    """Read names of POLICIES separated by commas."""
    names = options.words(text)
    if not names or not POLICIES.keys() >= set(names):
        raise argparse.ArgumentTypeError(f"{text!r} is not of {', '.join(POLICIES)}")
    return names


def _giga(text: str) -> float:
    """Read a number of GB/s above 0, in bytes per second."""
    return 1e9 * options.number(text, "GB/s above 0", 1e9)


def _tera(text: str) -> float:
    """Read a number of TMAC/s above 0, in multiply-adds per second."""
    return 1e12 * options.number(text, "TMAC/s above 0", 1e6)
