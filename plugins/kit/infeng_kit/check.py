"""`infeng plugins check`: builds a plugin, installs it in an environment of its own, and tries each of its parts."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from infeng_core.api import Plugins, UsageError, load_config, say
from infeng_kit import building, guard
from infeng_kit.plan import Plan, model_of
from infeng_kit.report import Line, as_text, failed, ok, skipped


class Check:
    """The verb."""

    name = "check"
    help = "build a plugin, try each of its parts in a process of its own, and report; status 1 if one failed"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments."""
        parser.add_argument(
            "plugin", metavar="DIR|NAME", help="the folder of a plugin's project, or an installed plugin"
        )
        parser.add_argument("--model", metavar="M", help="check kernels at the sizes of this model, not a 1.1B Llama's")
        parser.add_argument("--sanitize", action="store_true", help="build DIR under ASan and UBSan, and check it so")
        parser.add_argument("--json", action="store_true", help="for machines")

    def run(self, arguments: argparse.Namespace) -> int:
        """Print the report; the status is 1 if a line failed."""
        with tempfile.TemporaryDirectory(prefix="infeng-check-") as folder:
            begin = time.perf_counter()
            lines = list(_lines(arguments, Path(folder)))
            seconds = round(time.perf_counter() - begin, 1)
        if arguments.json:
            print(json.dumps({"seconds": seconds, "lines": [asdict(line) for line in lines]}, indent=2))
        else:
            say(*as_text(lines))
        return int(any(line.state == "failed" for line in lines))


@dataclass(frozen=True)
class Trial:
    """One plugin, and the Python that has it."""

    plan: Plan
    python: str
    environ: dict[str, str]
    folder: Path

    def section(self, name: str, argument: str = "", part: str = "") -> tuple[list[Line], str]:
        """Run a section in a process of its own; return its lines and its answer."""
        plan = self.folder / "plan.json"
        self.plan.write(plan)
        words = [self.python, "-P", "-m", "infeng_kit.child", f"{name}:{argument}", str(plan)]
        return guard.run(words, self.environ, self.folder, part or " ".join(filter(None, (name, argument))))


def _lines(arguments: argparse.Namespace, folder: Path) -> Iterator[Line]:
    model = model_of(arguments.model)
    if not Path(arguments.plugin).is_dir():
        if arguments.sanitize:
            raise UsageError("--sanitize", "an installed plugin is not built again", "name the folder of its project")
        Plugins.discover(load_config()).plugin(arguments.plugin)  # raises the error for a name that is unknown
        plan = Plan(arguments.plugin, str(folder), model=model)
        yield from _of_plugin(Trial(plan, sys.executable, building.clean_environ(folder), folder))
        return
    project = building.Project.read(Path(arguments.plugin))
    begin = time.perf_counter()
    wheel, said = building.build(project, folder, sanitized=arguments.sanitize)
    if wheel is None:
        yield failed("wheel", f"it is not built: {said}", _build_remedy(project))
        return
    made = building.environment(wheel, folder)
    yield ok("wheel", f"{wheel.name}, built and installed in {time.perf_counter() - begin:.1f} s")
    plan = Plan(_plugin_name(project), str(folder), project.options, model, arguments.sanitize)
    environ = {**made.environ, **(_sanitizing() if arguments.sanitize else {})}
    trial = Trial(plan, str(made.python), environ, folder)
    yield from _of_plugin(trial)
    yield from _own_tests(trial, project)


def _of_plugin(trial: Trial) -> Iterator[Line]:
    lines, parts = trial.section("manifest", part="plugin.yaml")
    yield from lines
    is_right = True
    for name, argument in json.loads(parts or "[]"):
        if name == "engine" and not is_right:
            continue  # an engine would not use the kernels
        part = f"kernel {argument.partition('/')[2]}" if name == "kernel" else ""
        lines, _ = trial.section(name, argument, part)
        yield from lines
        is_right = is_right and all(line.state != "failed" for line in lines)


def _own_tests(trial: Trial, project: building.Project) -> Iterator[Line]:
    tests = project.folder / "tests"
    if not tests.is_dir():
        return
    command = [trial.python, "-P", "-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider", str(tests)]
    found = subprocess.run([trial.python, "-c", "import pytest"], env=trial.environ, capture_output=True, check=False)
    if found.returncode != 0:
        yield skipped("tests", "pytest is not installed", "pip install pytest")
        return
    environ = {**trial.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            command, env=environ, cwd=trial.folder, capture_output=True, text=True, timeout=_TESTS_S, check=False
        )
    except subprocess.TimeoutExpired:
        yield failed("tests", f"they have not ended within {_TESTS_S} s", "run them: python -m pytest tests")
        return
    last = next((line for line in reversed(done.stdout.splitlines()) if line.strip()), done.stderr.strip()[-200:])
    if done.returncode == 0:
        yield ok("tests", last.strip())
    else:
        yield failed("tests", last.strip(), "run them: python -m pytest tests")


_TESTS_S = 600


def _plugin_name(project: building.Project) -> str:
    """Return the name of the entry point, by which the plugin is known until its plugin.yaml is read."""
    entries = project.settings.get("project", {}).get("entry-points", {}).get("infeng.plugins", {})
    if not isinstance(entries, dict) or len(entries) != 1:
        remedy = 'add [project.entry-points."infeng.plugins"] with NAME = "MODULE:plugin.yaml"'
        raise UsageError(str(project.folder / "pyproject.toml"), "it names no plugin, or several", remedy)
    return str(next(iter(entries)))


def _build_remedy(project: building.Project) -> str:
    missing = project.missing_tools()
    if missing:
        return f"pip install {' '.join(missing)}, or let pip reach an index or --find-links that has them"
    return "repair what the compiler or the build system names; Rust comes from https://rustup.rs"


def _sanitizing() -> dict[str, str]:
    """Return what lets a Python that is not sanitized load a library that is."""
    compiler = os.environ.get("CC", "cc")
    asked = [compiler, "-print-file-name=libasan.so"]
    found = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    return {
        "LD_PRELOAD": found,
        "ASAN_OPTIONS": "detect_leaks=0:handle_segv=1:abort_on_error=0:exitcode=99",
        "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
    }
