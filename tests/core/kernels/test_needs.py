"""What a problem needs, a kernel must handle: one that does not say so is not bound, one that lies is found out.

The kernels are copies of the reference's own, each for one bit of ``needs`` (data/needs.c).
"""

import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import infeng_abi
import pytest

from infeng_core import _native
from infeng_core.kernels.choice import Selector
from infeng_core.plug.assembly import load_config
from infeng_core.plug.manager import Plugins

ROOT = Path(__file__).parents[3]
HEADER = (infeng_abi.include_dir() / "infeng" / "abi.h").read_text()
NEEDS = set(re.findall(r"INFENG_NEED_(\w+) = \d+", HEADER))
FUNCTIONS = set(re.findall(r"INFENG_FUNCTION_(\w+) = [1-9]", HEADER))

OURS = ("liar", "honest")

ATTENTION = {"op": "attention", "kv": "f32", "heads": 2, "kv_heads": 1, "head_dim": 32, "context": 320}
NORM = {"op": "rmsnorm", "n": 96, "k": 96}
ROPE = {"op": "rope", "heads": 2, "kv_heads": 1, "head_dim": 32, "context": 64}
LORA = {"op": "epilogue", "n": 96, "k": 96, "epilogues": ["lora"]}

PROBLEMS: dict[str, dict[str, Any]] = {  # what brings each bit about
    "WINDOW": {**ATTENTION, "needs": ["window"]},
    "SOFTCAP": {**ATTENTION, "needs": ["softcap"]},
    "SINKS": {**ATTENTION, "needs": ["sinks"]},
    "ALIBI": {**ATTENTION, "needs": ["alibi"]},
    "MASK": {**ATTENTION, "needs": ["mask"]},
    "HEAD_SIZES": {**ATTENTION, "v_head_dim": 48},
    "ROW_GATHER": {**NORM, "needs": ["row_gather"]},
    "NORM_HEADS": {**NORM, "needs": ["norm_heads"]},
    "NORM_PLAIN": {**NORM, "needs": ["norm_plain"]},
    "NORM_OFFSET": {**NORM, "needs": ["norm_offset"]},
    "ROPE_NORM": {**ROPE, "needs": ["rope_norm"]},
    "ROPE_SCALE": {**ROPE, "needs": ["rope_scale"]},
    "LORA_F32": {**LORA, "needs": ["lora_f32"]},
    "LORA_BF16": {**LORA, "needs": ["lora_bf16"]},
    "LORA_I8": {**LORA, "needs": ["lora_int8"]},
    "LORA_I8T4": {**LORA, "needs": ["lora_int8t4"]},
    "WIDE": {"op": "epilogue", "n": 96, "k": 96, "epilogues": ["quantize_wide"]},
    "ROW": {"op": "epilogue", "n": 96, "k": 96, "epilogues": ["quantize_row"]},
}
PROBLEMS |= {
    name: {"op": "epilogue", "n": 96, "k": 96, "epilogues": [f"{name.lower()}_mul"]}
    for name in FUNCTIONS - PROBLEMS.keys()
}


def problem(bit: str) -> _native.Problem:
    fields = dict(PROBLEMS[bit])
    return _native.Problem(fields.pop("op"), rows=(2, 8), **fields)


@pytest.fixture(scope="module")
def selector_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Selector]]:
    """Return a function that makes a selector which prefers the library of data/needs.c, made with some flags."""
    folder = tmp_path_factory.mktemp("needs")
    common = ["cc", "-std=c11", "-O0", "-fPIC", f"-I{infeng_abi.include_dir()}", *infeng_abi.CFLAGS]
    objects = []
    for source in sorted((ROOT / "infeng_core" / "reference").glob("*.c")):
        objects.append(folder / f"{source.stem}.o")
        flags = ["-DINFENG_REFERENCE_PLAIN", '-DINFENG_REFERENCE_VERSION="1"', "-Dinfeng_library=reference_library"]
        subprocess.run([*common, *flags, "-c", source, "-o", objects[-1]], check=True)
    made: dict[str, Selector] = {}

    def selector(name: str, *flags: str) -> Selector:
        if name not in made:
            source = Path(__file__).parent / "data" / "needs.c"
            library = folder / f"lib{name}.so"
            macros = [f'-DLIBRARY="{name}"', *flags]
            subprocess.run([*common, "-shared", *macros, source, *objects, "-lm", "-o", library], check=True)
            manifest = folder / f"{name}.yaml"
            version = "{}.{}".format(*_native.ABI_VERSION)
            manifest.write_text(
                f'infeng_plugin: 1\nname: {name}\nversion: "1"\nabi: "{version}"\nlibrary: {library.name}\n'
                "provides: {kernels: [{name: lies_WINDOW, op: attention}]}\n"
            )
            settings = {"plugins.paths": [str(manifest)], "kernels.order": [name, "reference"]}
            plugins = Plugins.discover(load_config(overrides=settings))
            made[name] = Selector(plugins, plugins.config, plugins.cpu)
        return made[name]

    yield selector
    for each in made.values():
        each.close()


def reasons(selector: Selector, bit: str) -> tuple[str, dict[str, str]]:
    """Return (library that serves the problem, reason codes of the other library's kernels by their bit)."""
    decision = selector.decide(problem(bit))
    assert decision.chosen is not None
    codes = {c.kernel.removeprefix("lies_"): c.reason.code for c in decision.candidates if c.library in OURS}
    return decision.chosen.library, codes


def test_every_bit_of_the_header_has_a_case() -> None:
    assert set(PROBLEMS) == NEEDS | FUNCTIONS
    assert all(problem(bit).needs for bit in NEEDS)


@pytest.mark.parametrize("bit", sorted(PROBLEMS))
def test_a_kernel_without_the_bit_is_not_bound_and_one_that_claims_and_ignores_it_is_demoted(
    selector_of: Callable[..., Selector], bit: str
) -> None:
    library, codes = reasons(selector_of("liar"), bit)
    own = codes.pop(bit)
    assert (library, own) == ("reference", "wrong_result")
    lacks = "cannot_fuse" if bit in FUNCTIONS else "cannot_handle"
    assert len(codes) > 0
    assert set(codes.values()) == {lacks}


@pytest.mark.parametrize("bit", sorted(PROBLEMS))
def test_a_kernel_that_handles_its_claimed_need_is_bound(selector_of: Callable[..., Selector], bit: str) -> None:
    library, codes = reasons(selector_of("honest", "-DHONEST"), bit)
    assert (library, codes[bit]) == ("honest", "chosen")
