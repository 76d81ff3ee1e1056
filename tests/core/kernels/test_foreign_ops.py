"""Kernels of an op that a library describes: its plain kernel judges them, and an op that is missing is named."""

from __future__ import annotations

from pathlib import Path

import pytest
from infeng_doctor import facts
from workshop import Workshop

from infeng_core import _native, cli
from infeng_core.errors import KernelError, ManifestError
from infeng_core.kernels.choice import Selector
from infeng_core.kernels.libraries import library_states, plain_kernel
from infeng_core.plug.assembly import load_config

YAML = """\
infeng_plugin: 1
name: {name}
version: "1.0"
abi: "0.11"
library: lib{name}.so
provides:
  ops: [blend]
  kernels:
    - {{name: blend_plain, op: blend}}
    - {{name: blend_fast, op: blend}}
    - {{name: usual, op: epilogue}}
"""


def plugin(workshop: Workshop, name: str = "first", **macros: object) -> Path:
    return workshop.plugin(name, source="own_op.c", yaml_text=YAML.format(name=name), **macros)


def problem(*needs: str, rows: tuple[int, int] = (1, 8)) -> _native.Problem:
    return _native.Problem("blend", rows=rows, n=100, k=100, needs=list(needs))


def fates(selector: Selector, *needs: str) -> dict[str, str]:
    """Return the reason for or against each kernel, by library and name."""
    return {f"{c.library}/{c.kernel}": c.reason.code for c in selector.decide(problem(*needs)).candidates}


def chosen(selector: Selector, *needs: str) -> str:
    kernel = selector.choose(problem(*needs))
    return f"{kernel.library}/{kernel.name}"


@pytest.mark.parametrize("needs", [(), ("row_gather",)])
def test_the_kernel_of_the_highest_priority_is_used_once_it_agrees_with_the_plain_one(workshop, needs):
    selector = workshop.selector(plugin(workshop))
    assert chosen(selector, *needs) == "first/blend_fast"
    assert fates(selector, *needs) == {"first/blend_fast": "chosen", "first/blend_plain": "outranked"}


LAST = "if (m == args->rows - 1)"
WRONG = {
    "differs in one value": (f"{LAST} out[3] += 1", "out differs from the reference row"),
    "writes into its input": ("((float*)((const blend_args*)args)->x.data)[70] = 0", "it wrote to its input"),
    "writes into its vector": ("((float*)((const blend_args*)args)->weight.data)[0] = 9", "it wrote to its vectors"),
    "writes beyond its row": ("out[((const blend_args*)args)->x.shape[1]] = 1", "it wrote to more than its output"),
}


@pytest.mark.parametrize("kind", WRONG)
@pytest.mark.parametrize("needs", [(), ("row_gather",)])
def test_a_second_kernel_that_breaks_the_contract_is_refused(workshop, kind, needs):
    statement, words = WRONG[kind]
    selector = workshop.selector(plugin(workshop, **{"ON_FAST(m)": statement}))
    assert chosen(selector, *needs) == "first/blend_plain"
    [reason] = [c.reason for c in selector.decide(problem(*needs)).candidates if c.kernel == "blend_fast"]
    assert reason.code == "wrong_result" and words in str(reason)


def test_a_plain_kernel_that_writes_where_it_must_not_is_refused_and_judges_nobody(workshop):
    wrong = "((float*)((const blend_args*)args)->x.data)[0] += 1"
    selector = workshop.selector(plugin(workshop, **{"ON_PLAIN(m)": wrong}))
    with pytest.raises(KernelError, match="no kernel fits") as caught:
        selector.choose(problem())
    assert fates(selector) == {"first/blend_fast": "wrong_result", "first/blend_plain": "wrong_result"}
    assert "the plain kernel first/blend_plain cannot judge it: it wrote to its input" in str(caught.value)


@pytest.mark.parametrize("needs", [(), ("row_gather",)])
def test_a_kernel_that_fuses_more_than_the_plain_one_is_judged_with_its_steps(workshop, needs):
    """The judge's steps are an op of their own behind it."""
    scaled = _native.Problem("blend", rows=(1, 8), n=100, k=100, epilogues=[("scale", 3.0, 0.0)], needs=list(needs))
    right = workshop.selector(plugin(workshop, **{"FUSED(a)": "(a)"}))
    assert right.choose(scaled).name == "blend_fast"
    wrong = workshop.selector(plugin(workshop, "second", **{"FUSED(a)": "((a) + 1)"}))
    with pytest.raises(KernelError, match="out differs from the reference row"):
        wrong.choose(scaled)


def test_a_kernel_that_crashes_is_demoted(workshop):
    selector = workshop.selector(plugin(workshop, **{"ON_FAST(m)": "__builtin_trap()"}))
    assert chosen(selector) == "first/blend_plain"
    assert fates(selector)["first/blend_fast"] == "crashed"


def test_the_plain_kernel_of_one_library_judges_the_kernels_of_another(workshop):
    wrong = {"ON_FAST(m)": f"{LAST} out[0] += 1", "ON_PLAIN(m)": "", "PRIORITY": 9}
    selector = workshop.selector(plugin(workshop), plugin(workshop, "second", **wrong))
    plain = plain_kernel("blend", selector.states, selector.cpu)
    assert plain is not None and (plain[0].name, plain[1].name) == ("first", "blend_plain")
    assert chosen(selector) == "first/blend_fast"
    forced = workshop.selector(
        plugin(workshop), plugin(workshop, "second", **wrong), kernels__order="second,first,reference"
    )
    assert chosen(forced) == "second/blend_plain"
    assert fates(forced)["second/blend_fast"] == "wrong_result"


def test_a_library_that_describes_an_op_otherwise_keeps_its_other_kernels_with_a_note(workshop):
    selector = workshop.selector(plugin(workshop), plugin(workshop, "second", CASE_OTHERWISE=1))
    assert chosen(selector) == "first/blend_fast"
    [state] = [state for state in selector.states if state.name == "second"]
    assert state.native is not None and [kernel.name for kernel in state.native.kernels] == ["usual"]
    notes = facts.library(state)["notes"]
    assert notes[0] == "op blend: another library describes an op of this name otherwise: it is left out"
    assert "kernel blend_fast: its op blend cannot be used: it is left out" in notes


def test_a_malformed_op_is_named_where_a_graph_wants_it(workshop):
    selector = workshop.selector(plugin(workshop, CASE_EMPTY=1))
    with pytest.raises(KernelError, match=r"op blend: plugin first .* cannot be used for it: op blend: it has 0 op"):
        selector.operands("blend")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"plugins__disable": ["first"]}, r"plugin first \(plugins\.paths\) brings it.*: listed in plugins\.disable"),
        ({"kernels__disable": ["first"]}, "plugin first .* brings it.*: listed in kernels.disable"),
        ({"kernels__order": "reference"}, "plugin first .* brings it.*: add first or"),
    ],
)
def test_an_op_whose_plugin_may_not_be_used_names_the_plugin(workshop, settings, words):
    selector = workshop.selector(plugin(workshop), **settings)
    with pytest.raises(KernelError, match=words):
        selector.operands("blend")


def test_an_op_that_nobody_brings_is_an_error_with_the_likely_name(workshop):
    selector = workshop.selector(plugin(workshop))
    assert [one.name for one in selector.operands("blend")] == ["x", "row_index", "other", "weight", "factor"]
    with pytest.raises(KernelError, match=r"op blent: no plugin provides it: did you mean `blend`"):
        selector.operands("blent")
    with pytest.raises(KernelError, match="op rope: it is no op over rows alone"):
        selector.operands("rope")


def test_kernels_of_the_op_are_forced_and_disabled_by_name(workshop):
    path = plugin(workshop)
    assert chosen(workshop.selector(path, kernels__force={"blend": "first/blend_plain"})) == "first/blend_plain"
    assert chosen(workshop.selector(path, kernels__disable=["first/blend_fast"])) == "first/blend_plain"
    with pytest.raises(ManifestError, match=r"kernels\.force\.blent .*: no such operation: did you mean `blend`"):
        workshop.selector(path, kernels__force={"blent": "first"})
    with pytest.raises(ManifestError, match=r"kernels\.force\.blend .*: no such operation"):
        load_config(overrides={"kernels.force": {"blend": "first"}})


def test_verdicts_of_the_op_are_kept(workshop, monkeypatch):
    path = plugin(workshop)
    assert chosen(workshop.selector(path)) == "first/blend_fast"
    monkeypatch.setattr("infeng_inspect.trial.Trial._start", lambda _: pytest.fail("a child was started"))
    assert chosen(workshop.selector(path)) == "first/blend_fast"


def test_plugins_list_and_why_know_the_op(workshop, monkeypatch, capsys):
    monkeypatch.setenv("INFENG_PLUGINS_PATHS", str(plugin(workshop)))
    assert cli.main(["plugins", "info", "first"]) == 0
    assert "ops         blend" in capsys.readouterr().out
    assert cli.main(["plugins", "why", "blend", "--set", "kernels.order=first,reference"]) == 0
    assert "this model has no blend" in capsys.readouterr().out
    assert cli.main(["plugins", "why", "blent"]) == 2
    assert "did you mean `blend`" in capsys.readouterr().err


def test_the_states_of_an_engine_without_the_plugin_do_not_have_the_op(workshop):
    workshop.selector(plugin(workshop))
    states = library_states(workshop.plugins())
    assert all("blend" not in state.native.ops for state in states if state.native is not None)
