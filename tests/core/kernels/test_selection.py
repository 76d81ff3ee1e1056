"""The choice of the kernel, and the reasons against the others."""

from __future__ import annotations

import itertools
import json
import random
import re
from dataclasses import replace

import pytest

from infeng_core import log
from infeng_core.errors import KernelError, PluginError
from infeng_core.kernels.libraries import library_states, missing_wheels, state_of
from infeng_core.machine.cpu import closure
from infeng_core.plug import discovery
from infeng_core.plug.wheels import KERNELS


def test_a_contested_op_has_the_same_winner_in_any_discovery_order(workshop, monkeypatch):
    paths = [workshop.plugin(name) for name in ("zeta", "alpha", "midway")]
    installed = list(discovery._installed_wheels())
    shuffle = random.Random(1)
    outcomes = set()
    for order in 2 * list(itertools.permutations(paths)):
        shuffle.shuffle(installed)
        monkeypatch.setattr(discovery, "_installed_wheels", lambda: installed)
        discovery._wheels_in.cache_clear()
        selector = workshop.selector(*order)
        outcomes.add((workshop.chosen(selector), tuple(workshop.reasons(selector).items())))
    assert len(outcomes) == 1
    winner, reasons = outcomes.pop()
    assert winner == "alpha/embed_tiny"  # equal in order, features and priority: the name decides
    assert dict(reasons)["zeta/embed_tiny"] == dict(reasons)["midway/embed_tiny"] == "outranked"


def test_why_names_the_winner_and_every_loser(workshop):
    selector = workshop.selector(workshop.plugin("alpha"), workshop.plugin("beta"))
    reasons = {f"{c.library}/{c.kernel}": str(c.reason) for c in selector.decide(workshop.embed).candidates}
    assert reasons["alpha/embed_tiny"] == "first by name, equal in kernels.order, features and priority"
    assert reasons["beta/embed_tiny"] == reasons["reference/embed_f32"] == "alpha/embed_tiny ranks higher"
    assert reasons["reference/embed_bf16"] == "it does not accept this problem"


def test_a_note_with_a_star_gives_its_needs_to_every_kernel_that_it_covers(workshop, cpu):
    note = {"name": "embed_*", "op": "embed", "requires": {"features": ["gfni"]}}
    path = workshop.plugin("first", kernels=[note, {"name": "other", "op": "embed"}])
    masked = replace(cpu, features=cpu.features - {"gfni"})
    reasons = workshop.reasons(workshop.selector(path, cpu=masked))
    assert reasons["first/embed_tiny"] == "missing_features"


def test_a_library_that_was_opened_alone_is_not_opened_again_with_the_others(workshop):
    plugins = workshop.plugins(workshop.plugin("first"), kernels__order="first,*,amx,avx512,avx2,reference")
    plugin = plugins.plugin("first")
    alone = state_of(plugins, plugin, plugin.manifest.library)
    assert state_of(plugins, plugin, plugin.manifest.library) is alone
    assert alone in library_states(plugins)


def test_manifest_order_beats_priority(workshop):
    selector = workshop.selector(workshop.plugin("first"), workshop.plugin("second", PRIORITY=9))
    assert workshop.chosen(selector) == "first/embed_tiny"


def test_a_superset_of_features_beats_priority(workshop, cpu):
    plain = workshop.plugin("plain", PRIORITY=9)
    rich = workshop.plugin("rich", FEATURES='"avx2"')
    masked = replace(cpu, features=cpu.features | closure(["avx2"]))
    selector = workshop.selector(plain, rich, cpu=masked)
    assert workshop.chosen(selector) == "rich/embed_tiny"
    assert selector.decide(workshop.embed).chosen.reason.text == "uses the most of this processor"


def test_incomparable_features_leave_the_choice_to_priority(workshop, cpu):
    ample = replace(cpu, features=cpu.features | closure(["avx2", "gfni"]))
    one = workshop.plugin("one", FEATURES='"avx2"', PRIORITY=1)
    two = workshop.plugin("two", FEATURES='"gfni"', PRIORITY=2)
    assert workshop.chosen(workshop.selector(one, two, cpu=ample)) == "two/embed_tiny"


def test_priority_decides_within_a_library(workshop):
    path = workshop.plugin("pair", SECOND='"embed_better"', SECOND_FEATURES='""', SECOND_PRIORITY=5)
    assert workshop.chosen(workshop.selector(path)) == "pair/embed_better"


def test_a_kernel_that_lacks_a_feature_is_passed_over_by_name(workshop, cpu):
    path = workshop.plugin("pair", SECOND='"embed_vnni"', SECOND_FEATURES='"avx512_vnni"', SECOND_PRIORITY=5)
    selector = workshop.selector(path, cpu=replace(cpu, features=cpu.features - {"avx512_vnni"}, masked={}))
    assert workshop.chosen(selector) == "pair/embed_tiny"
    reason = next(c.reason for c in selector.decide(workshop.embed).candidates if c.kernel == "embed_vnni")
    assert reason.text == "needs avx512_vnni, which is not in this processor"


def test_approximate_kernels_need_permission(workshop):
    path = workshop.plugin("loose", NUMERICS="INFENG_NUMERICS_APPROX", PRIORITY=9)
    exact = workshop.selector(path)
    assert workshop.reasons(exact)["loose/embed_tiny"] == "approximate"
    assert exact.choose(workshop.embed).library != "loose"
    assert workshop.chosen(workshop.selector(path, kernels__numerics="fast")) == "loose/embed_tiny"


def test_forcing_an_approximate_kernel_under_exact_says_what_to_set(workshop):
    path = workshop.plugin("loose", NUMERICS="INFENG_NUMERICS_APPROX")
    selector = workshop.selector(path, kernels__force={"embed": "loose"})
    with pytest.raises(KernelError, match=r"loose.*not exact.*set kernels\.numerics: fast"):
        selector.choose(workshop.embed)


def test_a_library_that_the_order_does_not_name_is_not_used(workshop):
    path = workshop.plugin("stranger")
    selector = workshop.selector(path, kernels__order="reference")
    assert workshop.chosen(selector) == "reference/embed_f32"
    assert workshop.reasons(selector)["stranger/embed_tiny"] == "not_in_order"


@pytest.mark.parametrize("target", ["second", "second/embed_tiny"])
def test_force_wins_over_order(workshop, target):
    paths = workshop.plugin("first"), workshop.plugin("second")
    selector = workshop.selector(*paths, kernels__force={"embed": target})
    assert workshop.chosen(selector) == "second/embed_tiny"
    assert workshop.reasons(selector)["first/embed_tiny"] == "not_forced"


def test_force_reaches_a_library_that_the_order_leaves_out_for_that_op_only(workshop):
    path = workshop.plugin("stranger")
    selector = workshop.selector(path, kernels__order="reference", kernels__force={"embed": "stranger"})
    assert workshop.chosen(selector) == "stranger/embed_tiny"
    selector = workshop.selector(
        path, kernels__order="reference", kernels__force={"rope": "reference", "linear": "reference"}
    )
    assert workshop.chosen(selector) == "reference/embed_f32"


@pytest.mark.parametrize(
    ("force", "words"),
    [
        ({"embed": "frist"}, r"no kernel library frist: did you mean `first`\?"),
        ({"embed": "first/embed_tinny"}, r"no such kernel for embed: did you mean `embed_tiny`\?"),
        ({"rope": "first"}, r"first has no kernel for rope: its ops: embed"),
        ({"embed": "nothing_like_it"}, r"known here: .*first.*reference"),
    ],
)
def test_an_unknown_force_names_what_is_known(workshop, force, words):
    with pytest.raises(KernelError, match=words):
        workshop.selector(workshop.plugin("first"), kernels__force=force)


@pytest.mark.parametrize(
    ("setting", "names", "words"),
    [
        ("disable", "frist", r"kernels\.disable: frist \(argument\).*no kernel library of this name.*`first`"),
        ("disable", "first/embed_tinny", r"kernels\.disable: first/embed_tinny.*no such kernel.*`embed_tiny`"),
    ],
)
def test_a_name_that_no_library_has_is_a_warning_and_under_strict_an_error(workshop, capsys, setting, names, words):
    path = workshop.plugin("first")
    workshop.selector(path, **{f"kernels__{setting}": names})
    assert re.search(words, capsys.readouterr().err)
    strict = {"kernels__order": "reference", f"kernels__{setting}": names, "kernels__strict": "true"}
    if "/" in names:
        strict["kernels__order"] = "first,reference"
    with pytest.raises(KernelError, match=words.replace("(argument\\).*", "(argument\\): ")):
        workshop.selector(path, **strict)


@pytest.mark.parametrize(
    ("order", "words"),
    [
        ("frist,reference", r"kernels\.order: frist \(argument\): no kernel library of this name.*`first`"),
        ("avx521,*,reference", r"kernels\.order: avx521 .*did you mean `avx512`"),
        ("first/embed_tiny,reference", r"kernels\.order: first/embed_tiny .*known here: .*first"),
        ("zzzzz,reference", r"kernels\.order: zzzzz .*known here: .*avx512.*first"),
    ],
)
def test_a_name_in_the_order_that_no_library_has_is_an_error(workshop, order, words):
    path = workshop.plugin("first")
    for _ in range(2):
        with pytest.raises(KernelError, match=words):
            workshop.selector(path, kernels__order=order)


def test_the_library_of_a_plugin_that_cannot_be_used_may_be_in_the_order(workshop):
    path = workshop.plugin("first", yaml_text="infeng_plugin: 1\nname: [\n")
    selector = workshop.selector(path, kernels__order="first,reference")
    assert workshop.chosen(selector) == "reference/embed_f32"
    selector = workshop.selector(
        workshop.plugin("second"), kernels__order="second,reference", plugins__disable="second"
    )
    assert workshop.chosen(selector) == "reference/embed_f32"


def test_a_kernel_with_an_unknown_requirement_is_left_out_and_the_others_are_used(workshop):
    rows = [{"name": "embed_tiny", "op": "embed"}, {"name": "later", "op": "layernorm"},
            {"name": "embed_new", "op": "embed", "requires": {"features": ["avx10_2"]}}]  # fmt: skip
    path = workshop.plugin("first", kernels=rows, SECOND='"embed_new"', SECOND_FEATURES='""', SECOND_PRIORITY=9)
    selector = workshop.selector(path)
    assert workshop.chosen(selector) == "first/embed_tiny"
    reasons = {c.kernel: c.reason for c in selector.decide(workshop.embed).candidates if c.library == "first"}
    assert reasons["embed_new"].text == "needs avx10_2, which this engine does not know"


def test_a_kernel_whose_own_table_names_an_unknown_feature_is_left_out(workshop):
    path = workshop.plugin("first", SECOND='"embed_new"', SECOND_FEATURES='"avx10_2"', SECOND_PRIORITY=9)
    selector = workshop.selector(path)
    assert workshop.chosen(selector) == "first/embed_tiny"
    assert workshop.reasons(selector)["first/embed_new"] == "missing_features"


@pytest.mark.parametrize(
    ("features", "settings", "wheels"),
    [
        ([], {}, ""),
        (KERNELS["avx2"], {}, "infeng-avx2"),
        (KERNELS["avx512"] + KERNELS["avx2"], {}, "infeng-avx512"),
        ((*KERNELS["amx"], *KERNELS["avx2"]), {}, "infeng-amx infeng-avx512"),
        (KERNELS["avx512"] + KERNELS["avx2"], {"kernels__order": "avx2,reference"}, "infeng-avx2"),
        (KERNELS["avx2"], {"kernels__order": "reference"}, ""),
        (KERNELS["avx2"], {"kernels__disable": "avx2"}, ""),
        (KERNELS["avx2"], {"plugins__disable": "avx2"}, ""),
    ],
)
def test_the_core_alone_names_once_the_wheel_that_this_processor_wants(
    workshop, cpu, capsys, monkeypatch, features, settings, wheels
):
    monkeypatch.setattr(discovery, "_wheels", lambda: ())
    monkeypatch.setattr(log, "_warned", set())
    able = replace(cpu, features=closure(features))
    for _ in range(2):
        workshop.selector(cpu=able, **{"kernels__order": "amx,avx512,avx2,*,reference", **settings})
    warnings = [line for line in capsys.readouterr().err.splitlines() if "kernels for this processor" in line]
    assert len(warnings) == (1 if wheels else 0)
    assert all(line.endswith(f"remedy='pip install {wheels}'") for line in warnings)


def test_a_wheel_that_is_installed_is_not_missed_even_where_it_cannot_be_used(workshop, cpu):
    able = replace(cpu, features=closure(KERNELS["avx512"] + KERNELS["avx2"]))
    assert not missing_wheels(workshop.plugins(cpu=able))
    assert not missing_wheels(workshop.plugins(cpu=able, plugins__disable="avx512"))


def test_a_name_of_the_default_order_is_right_where_its_plugin_is_not_installed(workshop, capsys, monkeypatch):
    monkeypatch.setattr(discovery, "_wheels", lambda: ())
    workshop.selector(kernels__order="amx,avx512,avx2,*,reference", kernels__disable="amx", kernels__strict="true")
    assert "is ignored" not in capsys.readouterr().err


def test_a_misspelled_disabled_plugin_is_a_warning(workshop, capsys):
    path = workshop.plugin("first")
    workshop.plugins(path, plugins__disable="frist")
    assert "did you mean `first`?" in capsys.readouterr().err
    workshop.plugins(path, plugins__disable="of_another_machine")
    assert "of_another_machine" not in capsys.readouterr().err
    with pytest.raises(PluginError, match=r"plugins\.disable: frist \(argument\): no plugin has this name"):
        workshop.plugins(path, plugins__disable="frist", kernels__strict="true")


def test_an_unknown_op_in_force_is_a_manifest_error(workshop):
    with pytest.raises(Exception, match=r"kernels\.force\.liner .*did you mean `linear`\?"):
        workshop.selector(kernels__force={"liner": "reference"})


def test_a_forced_library_that_cannot_run_names_the_missing_feature(workshop, cpu):
    path = workshop.plugin("rich", features=["avx512_vnni"])
    lacking = replace(cpu, features=cpu.features - {"avx512_vnni"}, masked={"avx512_vnni": "masked by a test"})
    with pytest.raises(KernelError, match=r"kernels\.force\.embed: rich .*needs avx512_vnni \(masked by a test\)"):
        workshop.selector(path, cpu=lacking, kernels__force={"embed": "rich"})


def test_a_forced_kernel_that_cannot_run_names_the_missing_feature(workshop, cpu):
    path = workshop.plugin("pair", SECOND='"embed_vnni"', SECOND_FEATURES='"avx512_vnni"', SECOND_PRIORITY=5)
    lacking = replace(cpu, features=cpu.features - {"avx512_vnni"}, masked={})
    with pytest.raises(KernelError, match="needs avx512_vnni"):
        workshop.selector(path, cpu=lacking, kernels__force={"embed": "pair/embed_vnni"})


def test_a_forced_kernel_that_declines_is_an_error_not_a_fallback(workshop):
    selector = workshop.selector(workshop.plugin("first"), kernels__force={"embed": "first"})
    other = type(workshop.embed)("embed", weight="int8-row", rows=(1, 8), n=96, k=100)
    with pytest.raises(KernelError, match=r"kernels\.force says first"):
        selector.choose(other)


@pytest.mark.parametrize("disable", ["first", "first/embed_tiny"])
def test_disabled_kernels_are_not_used(workshop, monkeypatch, disable):
    monkeypatch.setenv("INFENG_DISABLE", disable)
    selector = workshop.selector(workshop.plugin("first"))
    assert workshop.reasons(selector)["first/embed_tiny"] == "disabled"
    assert selector.choose(workshop.embed).library != "first"


def test_force_comes_from_the_environment(workshop, monkeypatch):
    monkeypatch.setenv("INFENG_FORCE", "embed=reference,rope=reference")
    assert workshop.chosen(workshop.selector(workshop.plugin("first"))) == "reference/embed_f32"


def test_no_fitting_kernel_is_an_error_with_a_remedy(workshop):
    selector = workshop.selector(workshop.plugin("first"), kernels__order="first")
    with pytest.raises(KernelError, match=r"add reference to kernels\.order"):
        selector.choose(type(workshop.embed)("rope", rows=(1, 1), heads=2, kv_heads=1, head_dim=8, context=64))


def test_epilogues_that_a_kernel_cannot_fuse_rule_it_out(workshop):
    selector = workshop.selector(workshop.plugin("first"))
    fused = type(workshop.embed)("embed", weight="f32", rows=(1, 8), n=96, k=100, epilogues=["quantize"])
    candidate = next(c for c in selector.decide(fused).candidates if c.library == "first")
    assert candidate.reason.code == "cannot_fuse"
    assert "quantize" in candidate.reason.text


def test_two_libraries_of_one_name_are_an_error(workshop, monkeypatch):
    path = workshop.plugin("avx512_twin")
    text = path.read_text().replace("avx512_twin", "reference", 1)
    path.write_text(text.replace("name: avx512_twin", "name: reference"))
    with pytest.raises(PluginError, match=r"kernel library reference: offered by two plugins: core .* and reference"):
        workshop.selector(path)


def test_every_decision_is_one_log_event(workshop, capsys):
    log.configure(json=True, level="debug")
    try:
        selector = workshop.selector(workshop.plugin("first"))
        for _ in range(3):
            selector.choose(workshop.embed)
    finally:
        log.configure()
    events = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    decisions = [event for event in events if event["event"] == "kernel chosen"]
    assert len(decisions) == 1
    assert decisions[0]["library"] == "first"
    assert decisions[0]["others"]["reference/embed_f32"] == "outranked"


def test_all_decisions_are_one_line_for_operators(workshop, capsys):
    log.configure(json=True, level="info")
    try:
        selector = workshop.selector(workshop.plugin("first"))
        for problem in (workshop.embed, workshop.rmsnorm):
            selector.choose(problem)
        capsys.readouterr()
        selector.report()
    finally:
        log.configure()
    [event] = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert (event["event"], event["problems"], event["first"]) == ("kernels chosen", 2, 1)
