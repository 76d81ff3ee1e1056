"""The whole engine with the embedded model: tokens are right with any plugins, and the kernels are known."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from infeng_core.machine.cpu import detect

infeng_demo = pytest.importorskip("infeng_demo", reason="the demo wheel is not installed")

TIME_S = 120

SCRIPT = """
import json, sys
from infeng_core import Engine, SamplingParams
model, overrides = json.loads(sys.argv[1])
with Engine(model, manifest="exact-f32", threads=2, overrides=overrides) as engine:
    done = engine.generate(["Once upon a time"], SamplingParams(temperature=0.0, max_tokens=8))[0]
    bound = [(op.op, op.library, op.kernel) for op in engine.executable.bound()]
maps = {line.split()[-1] for line in open("/proc/self/maps") if ".so" in line}
print(json.dumps({"text": done.text, "bound": bound, "maps": sorted(maps)}))
"""


class Run:
    """What one process of the engine did."""

    def __init__(self, data: dict, stderr: str) -> None:
        self.text: str = data["text"]
        self.libraries = {library for _, library, _ in data["bound"]}
        self.embed = {library for op, library, _ in data["bound"] if op == "embed"}
        self.maps: list[str] = data["maps"]
        self.stderr = stderr


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def run(cache: Path, tmp_path: Path):
    def run(*plugins: Path, environ: dict[str, str] | None = None, **overrides: object) -> Run:
        settings = {name.replace("__", "."): value for name, value in overrides.items()}
        settings["plugins.paths"] = [str(path) for path in plugins]
        environment = {**os.environ, "INFENG_CACHE": str(cache), **(environ or {})}
        arguments = json.dumps([str(infeng_demo.model_dir()), settings])
        command = [sys.executable, "-P", "-c", SCRIPT, arguments]
        done = subprocess.run(
            command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=TIME_S, check=False
        )
        assert done.returncode == 0, done.stderr
        return Run(json.loads(done.stdout.splitlines()[-1]), done.stderr)

    return run


@pytest.fixture(scope="module")
def expected(cache: Path) -> str:
    """The reference's text."""
    arguments = json.dumps([str(infeng_demo.model_dir()), {"kernels.order": ["reference"]}])
    command = [sys.executable, "-P", "-c", SCRIPT, arguments]
    environment = {**os.environ, "INFENG_CACHE": str(cache)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIME_S, check=True)
    data = json.loads(done.stdout.splitlines()[-1])
    assert {library for _, library, _ in data["bound"]} == {"reference"}
    assert data["text"].strip()
    return str(data["text"])


@pytest.mark.slow
def test_a_good_plugin_is_used_and_changes_nothing(workshop, run, expected):
    result = run(workshop.plugin("first"), kernels__order=["first", "reference"])
    assert result.embed == {"first"}
    assert result.text == expected
    assert result.stderr == ""


@pytest.mark.slow
def test_a_masked_feature_keeps_its_library_unmapped(run, expected):
    if "avx512f" not in detect({}).features:
        pytest.skip("this processor has no AVX-512: nothing to mask")
    honest = run()
    masked = run(environ={"INFENG_CPU_FEATURES": "-avx512f"})
    assert "avx512" in honest.libraries
    assert any("libinfeng_avx512" in path for path in honest.maps)
    assert "avx512" not in masked.libraries
    assert not any("libinfeng_avx512" in path or "libinfeng_amx" in path for path in masked.maps)
    assert honest.text == masked.text == expected


def test_a_library_whose_needs_are_unmet_is_never_mapped(workshop, run, expected):
    path = workshop.plugin("first", features=["sve"] if detect({}).arch == "x86_64" else ["avx2"])
    result = run(path, kernels__order=["first", "reference"])
    assert not any("libfirst" in name for name in result.maps)
    assert (result.embed, result.text) == ({"reference"}, expected)
    assert result.stderr == ""  # a circumstance, not a fault


@pytest.mark.parametrize(
    ("macros", "word"),
    [
        ({"ON_LOAD": "__builtin_trap()"}, "code=crashed"),
        ({"ON_ENTRY": "abort()"}, "code=crashed"),
        ({"NO_ENTRY": 1}, "code=missing_symbol"),
    ],
    ids=["illegal instruction", "abort", "no entry point"],
)
def test_a_hostile_library_costs_nothing_but_a_warning(workshop, run, expected, macros, word):
    path = workshop.plugin("first", **macros)
    result = run(path, kernels__order=["first", "reference"])
    assert (result.embed, result.text) == ({"reference"}, expected)
    assert not any("libfirst" in name for name in result.maps)
    assert "plugin first is not used" in result.stderr
    assert word in result.stderr


def test_a_kernel_that_corrupts_tail_rows_does_not_reach_the_tokens(workshop, run, expected):
    wrong = {"ON_ROW(a,m,out)": "if (m == a->common.rows - 1 && m % 2) out[3] = -out[3]"}
    path = workshop.plugin("first", **wrong)
    result = run(path, kernels__order=["first", "reference"])
    assert result.embed == {"reference"} or result.embed == {"first", "reference"}  # rows 1 have no tail
    assert result.text == expected
    assert "kernel first/embed_tiny is not used" in result.stderr
    assert "differs from the reference" in result.stderr


@pytest.mark.slow
def test_no_kernel_is_called_before_a_child_process_has_tried_it(workshop, run, expected, tmp_path):
    """accepts and workspace are asked about the very same problems, by another process first."""
    log = tmp_path / "calls"
    path = workshop.plugin("first", source="rmsnorm.c", RECORD=f'"{log}"')
    for start in ("cold", "warm"):
        result = run(path, kernels__order=["first", "reference"])
        assert "first" in result.libraries and result.text == expected
        lines = [line.split(maxsplit=1) for line in log.read_text().splitlines()]
        engine, tried = lines[-1][0], set()  # the last call is the engine's own, of a program that is complete
        for process, call in lines:
            if process == engine:
                assert call in tried, (start, call)
            else:
                tried.add(call)
        assert len({process for process, _ in lines}) == (2 if start == "cold" else 3)


@pytest.mark.slow
def test_why_agrees_with_the_bound_kernels(workshop, cache, monkeypatch, capsys):
    """For every op, with a kernel that leaves what follows it to an op of its own."""
    from infeng_core import Engine
    from infeng_core.cli import main
    from infeng_core.settings.config import OPS

    monkeypatch.setenv("INFENG_CACHE", str(cache))
    path = workshop.plugin("first", source="rmsnorm.c")
    settings = {"plugins.paths": str(path), "kernels.order": "first,*,reference", "threads.count": "2"}
    with Engine(infeng_demo.model_dir(), overrides=settings) as engine:
        bound = engine.executable.bound()
    assert any((op.op, op.library) == ("rmsnorm", "first") for op in bound)
    words = [word for item in settings.items() for word in ("--set", "=".join(item))]
    for name in OPS:
        assert main(["plugins", "why", name, "--json", "--model", str(infeng_demo.model_dir()), *words]) == 0
        explained = {(item["problem"]["rows"][0], item["chosen"]) for item in json.loads(capsys.readouterr().out)}
        runs = {
            (first, f"{op.library}/{op.kernel}")
            for op in bound
            for first in (1, 2, 9, 65)
            if op.op == name and op.rows[0] <= first <= op.rows[1]
        }
        assert explained == runs, name


TAKEN = re.compile(r"^    (.+?)(?: x(\d+))?: takes (.+)$")
LEFT = re.compile(r"^        leaves (.+) to an op of their own: .")


def told(text: str, name: str) -> Counter[tuple[str, str]]:
    """Count the ops of a program, by kind and label, of which the lines of `why` about steps tell."""
    found: Counter[tuple[str, str]] = Counter()
    lines = text.partition("steps behind it\n")[2].splitlines()
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if taken := TAKEN.match(line):
            label, times = taken[1], int(taken[2] or 1)
            found[name, label if taken[3] == "none" else f"{label} + {taken[3]}"] += times
            if left := LEFT.match(following):
                found["epilogue", f"{label}: {left[1]}"] += times
    return found


@pytest.mark.parametrize("weights", ["f32", "int4-g64"])
def test_why_tells_which_steps_are_fused_in_what_ran(workshop, cache, monkeypatch, capsys, weights):
    """One kernel leaves what follows it to an op of its own; every op of the profile is one that was told, and ran."""
    from infeng_core import Engine, SamplingParams
    from infeng_core.cli import main

    monkeypatch.setenv("INFENG_CACHE", str(cache))
    path = workshop.plugin("first", source="rmsnorm.c")
    settings = {"plugins.paths": str(path), "kernels.order": "first,*,reference", "threads.count": "2"}
    settings |= {"model.format": weights, "model.formats": "{}"}
    with Engine(infeng_demo.model_dir(), overrides=settings) as engine:
        engine.executable.profile(True)
        engine.generate(["Once upon a time"], SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True))
        measured = engine.executable.measured()
    of_program = Counter((op.op, op.detail) for op in measured.ops)
    ran = {(measured.ops[line["op"]].op, measured.ops[line["op"]].detail) for line in measured.phases if line["calls"]}
    words = [word for item in settings.items() for word in ("--set", "=".join(item))]
    every: Counter[tuple[str, str]] = Counter()
    for name in ("linear", "rmsnorm", "attention"):
        assert main(["plugins", "why", name, "--model", str(infeng_demo.model_dir()), *words]) == 0
        every += told(capsys.readouterr().out, name)
    of_program.pop(next(op for op in of_program if op[0] == "epilogue" and op[1].startswith("embed ")))  # takes none
    with_steps = {op for op in of_program if op[0] == "epilogue" or " + " in op[1]}
    assert {op: of_program[op] for op in every} == dict(every)
    assert with_steps == {op for op in every if op[0] == "epilogue" or " + " in op[1]} != set()
    assert set(every) <= ran


@pytest.mark.slow
def test_a_lock_holds_and_breaks_when_the_binding_changes(workshop, cache, tmp_path, monkeypatch):
    from infeng_core import Engine
    from infeng_core.cli import main
    from infeng_core.errors import KernelError, PluginError

    monkeypatch.setenv("INFENG_CACHE", str(cache))
    plugin, lock = workshop.plugin("first"), tmp_path / "manifest.lock"
    manifest = tmp_path / "engine.yaml"
    manifest.write_text(
        f"infeng: 1\nmodel: {{path: {infeng_demo.model_dir()}, format: f32, formats: {{}}}}\n"
        f"kernels: {{order: [first, reference], lock: manifest.lock}}\nplugins: {{paths: [{plugin}]}}\n"
        "threads: {count: 1}\n"
    )
    assert main(["plugins", "lock", "--manifest", str(manifest), "-o", str(lock)]) == 0
    with Engine(manifest=manifest) as engine:
        assert "first" in {op.library for op in engine.executable.bound()}
    with pytest.raises(KernelError, match=r"manifest\.lock: embed f32.*locked to first/embed_tiny, now reference"):
        Engine(manifest=manifest, overrides={"kernels.disable": "first"})
    with pytest.raises(PluginError, match=r"other\.lock: plugin fair: not in the lock"):
        edited = lock.read_text().replace("  fair: ", "  unfair: ")
        assert edited.count("unfair") == 1
        (tmp_path / "other.lock").write_text(edited)
        Engine(manifest=manifest, overrides={"kernels.lock": str(tmp_path / "other.lock"), "scheduler.use": "fair"})
    with pytest.raises(KernelError, match=r"manifest\.lock: .*int8.*not in the lock"):
        Engine(manifest=manifest, format="int8-row")
    with pytest.raises(KernelError, match="library first: locked with sha256"):
        edited = re.sub("(?<=libraries:\n  first: )[0-9a-f]{4}", "0000", lock.read_text())
        (tmp_path / "other.lock").write_text(edited)
        Engine(manifest=manifest, overrides={"kernels.lock": str(tmp_path / "other.lock")})
    workshop.plugin("first", PRIORITY=3)
    with pytest.raises(
        PluginError, match=r"plugin first: locked as 1\.0 [0-9a-f]{64}, installed is 1\.0 [0-9a-f]{64}: "
    ):
        Engine(manifest=manifest)
    for text in ("infeng_lock: 1\n", "infeng_lock: 2\nplugins: [first]\n", "infeng_lock: 2\nplugins: {core: 1}\n"):
        lock.write_text(text)
        with pytest.raises(PluginError, match="write it again with `infeng plugins lock`"):
            Engine(manifest=manifest)
