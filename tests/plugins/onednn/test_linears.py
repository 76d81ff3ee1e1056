"""Linears through oneDNN are close to the reference, take large batches only, and change nothing but prompts."""

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import infeng_demo
import numpy as np
import pytest
from infeng_convert.conversion import convert
from infeng_inspect.case import OneOp
from infeng_kit.cases import Case, cases
from kernels.harness import reference

from infeng_core import Engine, SamplingParams
from infeng_core import _native as native
from infeng_core.formats.format_choice import FormatChoice
from infeng_core.kernels.libraries import libraries
from infeng_core.kernels.problems import problem
from infeng_core.plug.manager import Plugins

FEATURES = set(native.cpu_info().features)
FAST = {"kernels.numerics": "fast", "kernels.order": ["onednn", "amx", "avx512", "avx2", "reference"]}
BOUND = {"linear_f32": 1e-5, "linear_bf16": 2.0**-7}  # of the largest result; bf16 rounds the inputs, too
LIBRARY = next(library for library in libraries(Plugins.discover()) if library.name == "onednn")
KERNELS = {kernel.name: kernel for kernel in LIBRARY.kernels}
PROMPT = "Mia has 12 apples and gives 5 of them to Tom. How many apples are left? " * 6


def runnable(name: str) -> native.Kernel:
    if name == "linear_bf16" and "avx512bw" not in FEATURES:
        pytest.skip("this CPU has no avx512bw")
    return KERNELS[name]


def accepted(kernel: native.Kernel) -> Iterator[Case]:
    yield from (case for case in cases("linear") if kernel.accepts(case.problem))


def results(kernel: native.Kernel | None, case: Case) -> list[tuple[str, np.ndarray]]:
    op = OneOp(case.fields, kernel, reference(), [case.step], adapters=case.adapters)
    found = [(name, np.array(array)) for name, array in op.run(0)]
    assert op.damage is None, case.name
    return found


@pytest.mark.parametrize("name", sorted(BOUND))
def test_results_are_close_to_the_reference(name: str) -> None:
    kernel = runnable(name)
    tried = 0
    for case in accepted(kernel):
        for (what, found), (_, wanted) in zip(results(kernel, case), results(None, case), strict=True):
            if wanted.dtype.kind == "f":
                worst = np.abs(found.astype(np.float64) - wanted).max()
                assert worst <= BOUND[name] * np.abs(wanted).max(), f"{case.name}: {what}"
                tried += 1
    assert tried >= 10, "too few cases of the conformance suite reach this kernel"


@pytest.mark.parametrize(("rows", "is_taken"), [((1, 1), False), ((9, 64), False), ((65, 512), True), ((1, 89), True)])
def test_ranges_that_end_at_64_rows_are_left_to_others(rows: tuple[int, int], is_taken: bool) -> None:
    asked = problem({"op": "linear", "rows": rows, "weight": "f32", "act": "f32", "n": 256, "k": 256})
    assert KERNELS["linear_f32"].accepts(asked) is is_taken


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("models") / "demo-f32"
    convert(infeng_demo.model_dir(), out, FormatChoice("f32"), progress=False)
    return out


def text(engine: Engine) -> str:
    return engine.generate([PROMPT], SamplingParams(max_tokens=24, temperature=0))[0].text


def linears(engine: Engine, rows: int) -> dict[str, tuple[str, str]]:
    """Return library and kernel of each linear, named by its weight and steps, for a batch of ``rows`` rows."""
    return {
        op.detail: (op.library, op.kernel)
        for op in engine.bound()
        if op.op == "linear" and not op.detail.startswith("lm_head") and op.rows[0] <= rows <= op.rows[1]
    }


@pytest.mark.slow
def test_an_engine_uses_it_for_prompts_only_and_answers_the_same(model: Path) -> None:
    with Engine(model, threads=2) as exact, Engine(model, threads=2, overrides=FAST) as fast:
        assert {library for library, _ in linears(fast, 200).values()} == {"onednn"}
        assert "onednn" not in {library for library, _ in linears(exact, 200).values()}
        for rows in (1, 8, 64):
            assert linears(fast, rows) == linears(exact, rows) != {}, "decoding has the kernels and the steps it had"
        assert text(fast) == text(exact)


@pytest.mark.slow
def test_engines_in_several_threads_take_turns(model: Path) -> None:
    with Engine(model, threads=2, overrides=FAST) as one, Engine(model, threads=1, overrides=FAST) as other:
        alone = text(one)
        with ThreadPoolExecutor(4) as pool:
            assert set(pool.map(text, [one, other] * 4)) == {alone}


MISSING = """
import sys
from infeng_core import _native as native
from infeng_core.kernels.problems import problem
asked = problem({"op": "linear", "rows": (65, 512), "weight": "f32", "act": "f32", "n": 256, "k": 256})
library = native.open_library(sys.argv[1], sys.argv[2])
print([kernel.accepts(asked) for kernel in library.kernels])
"""


def test_without_onednn_its_kernels_decline(tmp_path: Path) -> None:
    """The library is copied to where no oneDNN lies beside it."""
    copy = tmp_path / "libinfeng_onednn.so"
    copy.write_bytes(Path(LIBRARY.path).read_bytes())
    done = subprocess.run(
        [sys.executable, "-P", "-c", MISSING, str(copy), ",".join(FEATURES)], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[False, False]"
