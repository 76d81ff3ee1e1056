"""No kernel is used before it has agreed with the reference."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
from infeng_inspect import comparison, trial
from infeng_inspect.case import OneOp
from infeng_inspect.operands import wide_rounding
from infeng_inspect.small import small
from workshop import Workshop

from infeng_core import _native
from infeng_core.errors import KernelError
from infeng_core.formats.packing import packer
from infeng_core.kernels import problems
from infeng_core.kernels.choice import Selector
from infeng_core.kernels.libraries import library_states
from infeng_core.kernels.storages import A_FORMATS
from infeng_core.plug.manager import Plugins

LAST_ROW = "if (m == a->common.rows - 1 && a->common.rows % 4) out[a->weight->k - 1] += 1"


def embedded(selector: Selector, problem: _native.Problem, rows: int) -> tuple[str, np.ndarray]:
    """Run the chosen kernel on ``rows`` rows; returns (library that ran, result)."""
    kernel = selector.choose(problem)
    n, k = problem.n, problem.k
    source = np.random.default_rng(3).standard_normal((n, k), np.float32)
    data = _native.Arena(n // 16 * _native.panel_bytes("f32", k), huge_pages=False)
    packer().pack("f32", source, data)
    program = _native.Program(_native.Pool(1), max_rows=8, max_samples=1, max_segments=1, context=16)
    out = program.buffer(k)
    program.embed([(8, kernel)], _native.Weight("f32", n, k, n // 16, _native.panel_bytes("f32", k), data), out)
    program.finish()
    ids = np.arange(rows, dtype=np.int32)
    program.run(ids, ids, np.array([[0, rows, 0, 0]], np.int32), np.zeros(1, np.int32), np.array([0], np.int32))
    return kernel.library, np.array(program.view(out)[:rows])


def test_a_fast_kernel_that_corrupts_tail_rows_is_demoted_and_the_output_is_the_references(workshop, capsys):
    wrong = workshop.plugin("first", **{"ON_ROW(a,m,out)": LAST_ROW}, PRIORITY=99)
    selector = workshop.selector(wrong, kernels__order="first,reference")
    library, result = embedded(selector, workshop.embed, 7)
    trusted, expected = embedded(workshop.selector(kernels__order="reference"), workshop.embed, 7)
    assert (library, trusted) == ("reference", "reference")
    assert result.tobytes() == expected.tobytes()
    assert workshop.reasons(selector)["first/embed_tiny"] == "wrong_result"
    warning = capsys.readouterr().err
    assert warning.count("warning") == 1
    for word in ("first/embed_tiny", "plugin=first", "differs from the reference row", "kernels.disable"):
        assert word in warning


def test_without_the_check_the_same_kernel_runs_and_is_wrong(workshop):
    wrong = workshop.plugin("first", **{"ON_ROW(a,m,out)": LAST_ROW})
    selector = workshop.selector(wrong, kernels__order="first,reference", kernels__verify=False)
    library, result = embedded(selector, workshop.embed, 7)
    _, expected = embedded(workshop.selector(kernels__order="reference"), workshop.embed, 7)
    assert library == "first"
    assert result.tobytes() != expected.tobytes()


def test_strict_makes_a_demotion_an_error(workshop):
    wrong = workshop.plugin("first", **{"ON_ROW(a,m,out)": LAST_ROW})
    selector = workshop.selector(wrong, kernels__strict=True)
    with pytest.raises(KernelError, match=r"first/embed_tiny.*differs from the reference"):
        selector.choose(workshop.embed)


def test_a_forced_kernel_that_is_wrong_is_an_error(workshop):
    wrong = workshop.plugin("first", **{"ON_ROW(a,m,out)": LAST_ROW})
    selector = workshop.selector(wrong, kernels__force={"embed": "first"})
    with pytest.raises(KernelError, match="differs from the reference"):
        selector.choose(workshop.embed)


@pytest.mark.parametrize(
    ("statement", "code"),
    [("__builtin_trap()", "crashed"), ("for(;;)", "endless"), ("return INFENG_INTERNAL", "failed")],
)
def test_a_kernel_that_fails_while_running_is_demoted(workshop, monkeypatch, statement, code):
    monkeypatch.setattr(trial, "CPU_S", 0.7)
    path = workshop.plugin("first", **{"ON_ROW(a,m,out)": statement})
    selector = workshop.selector(path)
    assert selector.choose(workshop.embed).library != "first"
    assert workshop.reasons(selector)["first/embed_tiny"] == code


OWN_FAULTS = {  # what the engine's own code in the child gets wrong
    "the case": "from infeng_inspect import comparison as part; part.difference = fail",
    "the small problem": "from infeng_inspect import small as part; part.small = fail",
    "the library": "from infeng_core.api.kernels import native as part; part.open_library = fail",
}


@pytest.mark.parametrize("fault", OWN_FAULTS)
def test_a_fault_of_the_engine_is_no_verdict_about_a_kernel(workshop, monkeypatch, tmp_path, capsys, fault):
    code = f"def fail(*args): raise TypeError('of the engine')\n{OWN_FAULTS[fault]}\n"
    (tmp_path / "sitecustomize.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    path = workshop.plugin("first", source="rmsnorm.c")
    selector = workshop.selector(path)
    chosen, code, text = fate(selector, workshop.rmsnorm)
    assert (chosen != "first", code) == (True, "untried")
    assert "TypeError: of the engine" in text and "please report it" in text
    assert not any(selector.is_refused(k) for s in selector.states if s.native is not None for k in s.native.kernels)
    log = capsys.readouterr().err
    mine = [part for part in log.split("the engine could not try a kernel")[1:] if str(path.parent) in part]
    assert len(mine) == 1
    assert "Traceback (most recent call last)" in mine[0] and "sitecustomize.py" in mine[0]
    selector.close()
    monkeypatch.delenv("PYTHONPATH")
    assert fate(workshop.selector(path), workshop.rmsnorm)[:2] == ("first", "chosen")


def test_an_approximate_kernel_may_be_close_but_not_wrong(workshop):
    close, far = ("out[0] += 1e-3f", "out[0] += 10")
    for statement, library in ((close, "first"), (far, "reference")):
        path = workshop.plugin("first", NUMERICS="INFENG_NUMERICS_APPROX", **{"ON_ROW(a,m,out)": statement})
        selector = workshop.selector(path, kernels__numerics="fast", kernels__order="first,reference")
        assert selector.choose(workshop.embed).library == library


def norm(workshop, **macros: object):
    """Return a selector over a plugin whose rmsnorm ranks first."""
    return workshop.selector(workshop.plugin("first", source="rmsnorm.c", **macros))


def fate(selector: Selector, problem: _native.Problem) -> tuple[str, str, str]:
    """Return (library chosen, code and text of the plugin's kernel)."""
    chosen = selector.choose(problem).library
    reason = next(c.reason for c in selector.decide(problem).candidates if c.library == "first")
    return chosen, reason.code, str(reason)


def test_an_honest_rmsnorm_is_used(workshop):
    for problem in (workshop.rmsnorm, workshop.gather):
        assert fate(norm(workshop), problem)[:2] == ("first", "chosen")


LAST = "if (m == a->common.rows - 1)"
K = "a->x.shape[1]"
WRONG = {
    "ignores the rows' index": ({"INDEX(a,m)": "(m)"}, "out differs from the reference row 0"),
    "writes into its weight": ({"ON_ROW(a,m,out)": f"{LAST} ((float*)w)[0] += 1"}, "it wrote to its weight"),
    "writes into its input": ({"ON_ROW(a,m,out)": "((float*)x)[3] = 0"}, "it wrote to its input"),
    "writes behind its row": ({"ON_ROW(a,m,out)": f"out[{K}] = 1"}, "it wrote to more than its output"),
    "writes one row more": (
        {"ON_ROW(a,m,out)": f"{LAST} if (m < 7) out[a->out.strides[0]] = 1"},
        "it wrote to more than its output",
    ),
    "writes behind its shared memory": (
        {"ON_ROW(a,m,out)": "((char*)worker->shared)[64] = 1"},
        "it wrote to more than its scratch memory",
    ),
    "writes behind its own memory": (
        {"ON_ROW(a,m,out)": "((char*)worker->private_)[100] = 1", "ON_WORKSPACE(p)": "out->per_worker = 100"},
        "it wrote to more than its scratch memory",
    ),
    "writes before its output": ({"ON_ROW(a,m,out)": "if (m == 0) out[-1] = 1"}, "memory beside its output"),
    "writes far behind its output": (
        {"ON_ROW(a,m,out)": f"{LAST} if (m == 7) out[a->out.strides[0]] = 1"},
        "memory beside its output",
    ),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_kernel_that_breaks_the_contract_in_one_way_is_refused(workshop, kind):
    macros, words = WRONG[kind]
    problem = workshop.gather if "index" in kind else workshop.rmsnorm
    chosen, code, text = fate(norm(workshop, **macros), problem)
    assert (chosen != "first", code) == (True, "wrong_result")
    assert words in text


ROW_OP = {  # a kernel of a row op, whose case is made of its operands
    "ignores the rows' index": ({"INDEX(a,m)": "(m)"}, "out differs from the reference row 0"),
    "ignores its bias": ({"BIAS(a,i)": "0.0f"}, "out differs from the reference"),
    "divides where others multiply": ({"SCALED(d,r)": "((d)/(1.0f/(r)))"}, "out differs from the reference"),
    "writes into a vector": ({"ON_ROW(a,m)": "((float*)a->bias.data)[1] += 1"}, "it wrote to its vectors"),
    "writes into its input": ({"ON_ROW(a,m)": "((float*)x)[2] = 0"}, "it wrote to its input"),
}


@pytest.mark.parametrize("needs", [[], ["row_gather"]])
def test_an_honest_kernel_of_a_row_op_is_used(workshop, needs):
    selector = workshop.selector(workshop.plugin("first", source="layernorm.c"))
    problem = _native.Problem("layernorm", rows=(1, 8), n=100, k=100, needs=needs)
    assert fate(selector, problem)[:2] == ("first", "chosen")


@pytest.mark.parametrize("kind", ROW_OP)
def test_a_kernel_of_a_row_op_that_breaks_the_contract_is_refused(workshop, kind):
    macros, words = ROW_OP[kind]
    selector = workshop.selector(workshop.plugin("first", source="layernorm.c", **macros))
    needs = ["row_gather"] if "index" in kind else []
    chosen, code, text = fate(selector, _native.Problem("layernorm", rows=(1, 8), n=100, k=100, needs=needs))
    assert (chosen != "first", code) == (True, "wrong_result")
    assert words in text


@pytest.mark.parametrize("function", ["ON_ACCEPTS(p)", "ON_WORKSPACE(p)", "ON_TILES(a)"])
@pytest.mark.parametrize(
    ("statement", "code"),
    [
        ("__builtin_trap()", "crashed"),
        pytest.param("abort()", "crashed", marks=pytest.mark.slow),
        pytest.param("for (;;)", "endless", marks=pytest.mark.slow),  # a second of processor time each
    ],
)
def test_no_function_of_a_kernel_takes_the_engine_with_it(workshop, monkeypatch, function, statement, code):
    monkeypatch.setattr(trial, "CPU_S", 0.7)
    selector = norm(workshop, **{function: statement})
    assert fate(selector, workshop.rmsnorm)[1] == code
    assert selector.choose(workshop.rmsnorm).library != "first"


def test_an_impossible_workspace_is_a_fault(workshop):
    _, code, text = fate(norm(workshop, **{"ON_WORKSPACE(p)": "out->per_worker = -5"}), workshop.rmsnorm)
    assert code == "wrong_result" or code == "failed"
    assert "-5" in text


def test_a_kernel_that_fails_on_one_range_of_rows_serves_none(workshop, monkeypatch, capsys):
    wrong = {"ON_ROW(a,m,out)": "if (a->common.rows > 8) out[0] += 1"}
    selector = norm(workshop, **wrong)
    few, many = (_native.Problem("rmsnorm", rows=rows, n=100, k=100) for rows in ((1, 8), (9, 64)))
    assert selector.choose(few).library == "first"
    assert selector.choose(many).library != "first"
    assert selector.is_refused(next(k for s in selector.states if s.name == "first" for k in s.native.kernels))
    assert fate(selector, few)[1] == "wrong_result"
    assert selector.choose(few).library != "first"
    assert capsys.readouterr().err.count("kernel first/rmsnorm_tiny is not used") == 1
    monkeypatch.setattr(trial.Trial, "_start", None)  # no child can be started: the refusal is kept
    assert fate(norm(workshop, **wrong), few)[1] == "wrong_result"


def test_accepted_problems_are_kept_in_the_cache(workshop, monkeypatch):
    declines = {"ON_ACCEPTS(p)": "if (p->k == 100) return 0"}
    other = _native.Problem("rmsnorm", rows=(1, 8), n=36, k=36)
    selector = norm(workshop, **declines)
    assert (fate(selector, workshop.rmsnorm)[1], fate(selector, other)[1]) == ("declines", "chosen")
    monkeypatch.setattr(trial.Trial, "_start", None)
    selector = norm(workshop, **declines)
    assert (fate(selector, workshop.rmsnorm)[1], fate(selector, other)[1]) == ("declines", "chosen")


def test_verdicts_are_kept_between_runs(workshop, monkeypatch):
    wrong, right = workshop.plugin("first", **{"ON_ROW(a,m,out)": LAST_ROW}), workshop.plugin("second")
    assert workshop.chosen(workshop.selector(wrong, right)) == "second/embed_tiny"
    monkeypatch.setattr(trial.Trial, "_start", None)  # no child can be started
    selector = workshop.selector(wrong, right)
    assert workshop.chosen(selector) == "second/embed_tiny"
    assert workshop.reasons(selector)["first/embed_tiny"] == "wrong_result"


def test_a_verdict_is_not_carried_to_other_features_or_another_library(workshop, monkeypatch, cpu):
    from dataclasses import replace

    path = workshop.plugin("first")
    workshop.chosen(workshop.selector(path))
    asked = []
    real = trial.Trial.check
    monkeypatch.setattr(trial.Trial, "check", lambda self, *args: asked.append(args) or real(self, *args))
    workshop.chosen(workshop.selector(path))
    assert not asked
    workshop.chosen(workshop.selector(path, cpu=replace(cpu, features=cpu.features - {"gfni", "bmi2", "dotprod"})))
    assert len(asked) == 1
    workshop.chosen(workshop.selector(workshop.plugin("first", PRIORITY=1)))
    assert len(asked) == 2


PROBLEMS = [
    {"op": "embed", "weight": "int8-row", "rows": [1, 8], "n": 96, "k": 172},
    {"op": "rmsnorm", "rows": [9, 40], "n": 100, "k": 100, "epilogues": ["quantize"]},
    {"op": "linear", "weight": "f32", "act": "f32", "rows": [1, 1], "n": 32000, "k": 2048, "epilogues": ["bias"]},
    {"op": "linear", "weight": "bf16", "act": "f32", "rows": [2, 8], "n": 48, "k": 576, "epilogues": ["residual"]},
    {"op": "linear", "weight": "int8-row", "act": "int8-g64", "rows": [1, 512], "n": 160, "k": 8192},
    {"op": "linear", "weight": "int4-g64", "act": "int8-g64", "rows": [65, 512], "n": 11264, "k": 2048,
     "epilogues": ["silu_mul", "quantize"]},
    {"op": "epilogue", "rows": [1, 8], "n": 896, "k": 896, "epilogues": ["row_scale", "quantize"]},
    {"op": "epilogue", "rows": [1, 8], "n": 96, "k": 96, "epilogues": ["silu_mul"]},
    {"op": "rope", "rows": [1, 8], "heads": 14, "kv_heads": 2, "head_dim": 64, "context": 4096},
    {"op": "kv_append", "kv": "f32", "rows": [1, 8], "kv_heads": 3, "head_dim": 80, "context": 100},
    {"op": "kv_append", "kv": "int8", "rows": [9, 64], "kv_heads": 8, "head_dim": 128, "context": 4096},
    {"op": "attention", "kv": "f32", "rows": [1, 1], "heads": 8, "kv_heads": 8, "head_dim": 8, "context": 512},
    {"op": "attention", "kv": "int8", "rows": [2, 8], "heads": 32, "kv_heads": 4, "head_dim": 64, "context": 2048,
     "epilogues": ["quantize"]},
    {"op": "attention", "kv": "int8", "rows": [2, 8], "heads": 32, "kv_heads": 4, "head_dim": 64, "context": 2048,
     "epilogues": ["quantize_wide"]},
    {"op": "linear", "weight": "int4-p32", "act": "int8-g256", "rows": [2, 8], "n": 11264, "k": 2048,
     "epilogues": ["silu_mul", "quantize_wide"]},
    {"op": "linear", "weight": "bf16", "act": "f32", "rows": [9, 64], "n": 2048, "k": 576,
     "epilogues": ["quantize_wide"]},
    {"op": "linear", "weight": "f32", "act": "f32", "rows": [1, 1], "n": 2048, "k": 576, "epilogues": ["lora"]},
    {"op": "linear", "weight": "int4-g64", "act": "int8-g64", "rows": [2, 8], "n": 11264, "k": 2048,
     "epilogues": ["lora", "silu_mul", "quantize"]},
    {"op": "linear", "weight": "int4-g32", "act": "int8-g64", "rows": [2, 8], "n": 1152, "k": 896,
     "epilogues": ["lora", "bias"]},
    {"op": "epilogue", "rows": [1, 8], "n": 896, "k": 896, "epilogues": ["lora", "residual"]},
    {"op": "shrink", "weight": "int8-row", "act": "int8-g64", "rows": [1, 8], "n": 1024, "k": 2048},
    {"op": "shrink", "weight": "bf16", "act": "f32", "rows": [9, 64], "n": 1024, "k": 100},
    {"op": "shrink", "weight": "f32", "act": "f32", "rows": [1, 1], "n": 1024, "k": 5632},
]  # fmt: skip


@pytest.mark.parametrize("fields", PROBLEMS, ids=lambda fields: problems.kind(fields))
def test_the_reference_agrees_with_itself_on_every_op(fields):
    reference = library_states(Plugins.discover())[-1].native
    assert reference.name == "reference"
    problem = problems.problem(fields)
    kernel = next(k for k in reference.kernels if k.op == fields["op"] and k.accepts(problem))
    case = small(problem, kernel)
    assert case is not None
    assert comparison.difference(kernel, reference, case) is None


WIDE = [fields for fields in PROBLEMS if "quantize_wide" in fields.get("epilogues", ())]


@pytest.mark.parametrize("fields", WIDE, ids=lambda fields: problems.kind(fields))
def test_a_kernel_that_rounds_each_64_of_a_wide_group_separately_is_detected(fields):
    reference, problem = library_states(Plugins.discover())[-1].native, problems.problem(fields)
    case = small(problem, next(k for k in reference.kernels if k.op == fields["op"] and k.accepts(problem)))
    columns = case["heads"] * case["head_dim"] if fields["op"] == "attention" else case["n"]
    columns //= 1 + any(map(problems.is_gated, fields["epilogues"]))
    assert columns > 256 and wide_rounding(columns)["group"] == 256


TINY = [
    {"op": "embed", "weight": "f32", "rows": [1, 40], "n": 16, "k": 8},
    {"op": "embed", "weight": "int4-g64", "rows": [1, 8], "n": 32, "k": 16},
    {"op": "rmsnorm", "rows": [1, 8], "n": 4, "k": 4},
    {"op": "linear", "weight": "int8-row", "act": "int8-g64", "rows": [1, 8], "n": 16, "k": 8},
    {"op": "linear", "weight": "f32", "act": "f32", "rows": [1, 8], "n": 16, "k": 1, "epilogues": ["lora"]},
    {"op": "linear", "weight": "f32", "act": "f32", "rows": [1, 8], "n": 32, "k": 4, "epilogues": ["silu_mul"]},
    {"op": "shrink", "weight": "int8-row", "act": "int8-g64", "rows": [1, 8], "n": 1024, "k": 8},
    {"op": "rope", "rows": [1, 8], "heads": 1, "kv_heads": 1, "head_dim": 2, "context": 4},
    {"op": "kv_append", "kv": "int8", "rows": [1, 8], "kv_heads": 1, "head_dim": 4, "context": 4},
    {"op": "attention", "kv": "f16", "rows": [1, 8], "heads": 1, "kv_heads": 1, "head_dim": 4, "context": 4},
]


@pytest.mark.parametrize("fields", TINY, ids=lambda fields: problems.kind(fields))
def test_the_smallest_models_pose_problems_that_can_be_checked(fields):
    """A vocabulary of 3 has one panel of 16 rows; an error in the case itself would be blamed on the plugin."""
    reference = library_states(Plugins.discover())[-1].native
    problem = problems.problem(fields)
    kernel = next(k for k in reference.kernels if k.op == fields["op"] and k.accepts(problem))
    case = small(problem, kernel)
    assert case is not None
    assert comparison.difference(kernel, reference, case) is None  # NoJudgeError where the case is at fault


def test_a_child_that_only_answers_fits_does_not_import_numpy():
    path = next(state.path for state in library_states(Plugins.discover()) if state.name == "reference")
    question = {"fits": "embed_f32", "problem": problems.fields(Workshop.embed), "open": str(path), "features": ""}
    code = (
        "import json, sys; from infeng_inspect import probe\n"
        "print(json.dumps([probe.answer(json.loads(sys.argv[1])), 'numpy' in sys.modules]))"
    )
    command = [sys.executable, "-P", "-c", code, json.dumps({**question, "cpu_s": 3})]
    answer, has_numpy = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert answer["fits"] and answer["case"]["op"] == "embed"
    assert not has_numpy


def variants(fields):
    """Yield (case, adapters, rows to try, their steps) of what the first-use check would try for a problem."""
    reference = library_states(Plugins.discover())[-1].native
    problem = problems.problem(fields)
    kernel = next(k for k in reference.kernels if k.op == fields["op"] and k.accepts(problem))
    case = small(problem, kernel)
    for adapters, rows in comparison.variants(case, comparison.row_counts(case)):
        steps = [comparison.sequences(case, count) for count in rows]
        yield OneOp(case, None, reference, steps, adapters=adapters), adapters, rows


@pytest.mark.parametrize("fields", PROBLEMS, ids=lambda fields: problems.kind(fields))
def test_a_case_reaches_every_row_that_the_op_writes(fields):
    """The inputs are not so tame that a kernel could leave its output alone and pass."""
    for op, _, counts in variants(fields):
        for step, rows in enumerate(counts):
            name, result = op.run(step)[0]
            if fields["op"] == "shrink":  # the last third of the rows has no adapter
                result = result[: -(-2 * rows // 3)]
            written = result.reshape(-1, 1) if name == "cache" else result
            assert np.count_nonzero(written) > 0.3 * min(rows, 4) * (1 if name == "cache" else written.shape[1])
            if name != "cache":
                assert written.any(axis=1).all()
        assert op.damage is None


ADAPTED = [fields for fields in PROBLEMS if fields["op"] == "shrink" or "lora" in fields.get("epilogues", ())]


@pytest.mark.parametrize("fields", ADAPTED, ids=lambda fields: problems.kind(fields))
def test_a_kernel_that_ignores_adapters_is_detected(fields, monkeypatch):
    tried = []
    for op, adapters, counts in variants(fields):
        whole = [op.run(step)[0][1] for step in range(len(counts))]
        op._ranges = [()] * len(counts)
        for step, rows in enumerate(counts):
            changed = (op.run(step)[0][1] != whole[step]).any(axis=1)
            adapted = -(-2 * rows // 3)
            assert changed[:adapted].all()
            assert not changed[adapted:].any()
        tried.append(adapters.storage)
    assert tried == ([tried[0]] if fields["op"] == "shrink" else list(A_FORMATS))
