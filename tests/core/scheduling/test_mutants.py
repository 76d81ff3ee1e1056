"""Seeded bugs in the scheduler: for each, a test that finds it.

A mutant is one text of a file in ``infeng_core/scheduling`` replaced by another. The rooms ``scheduling`` and ``step``
are imported a second time in this process, with the mutated source, under their own names; the test files are imported
anew against that, and the named tests are called. Afterwards the real modules are back. Random tests run with fixed
seeds and without shrinking.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, NamedTuple

import pytest
from drawn import NIGHTLY
from hypothesis import HealthCheck, Phase, settings

import infeng_core
import infeng_core.scheduling
import infeng_core.step

HERE = Path(__file__).parent
SOURCES = Path(infeng_core.__file__).parent / "scheduling"


class Mutant(NamedTuple):
    name: str
    file: str
    old: str
    new: str
    killer: str
    """The file of tests without ``test_``, a colon, and the test."""


RANDOM, WINDOWS = "scheduler_stateful:random_loads", "scheduler_stateful:random_windows"

LOADS = 200
"""Random loads within which a bug is found."""

MUTANTS = [
    Mutant("blocks stay with who has ended", "scheduler", "self._tables.release(sequence)", "sequence.forget_blocks()",
           "on_demand:test_where_blocks_run_out_the_last_that_started_waits_again_and_keeps_its_tokens"),
    Mutant("a block is shared before it is written", "prefix_cache", "whole = sequence.computed // BLOCK_TOKENS",
           "whole = min(len(sequence.blocks), sequence.length // BLOCK_TOKENS)", RANDOM),
    Mutant("a prompt may be found whole", "prefix_cache", "most = sequence.length - 1", "most = sequence.length",
           RANDOM),
    Mutant("reported rows may be found", "prefix_cache",
           "return most if sequence.report_from is None else min(most, sequence.report_from)",
           "return most", RANDOM),
    Mutant("the key ignores weights", "schedulers", "sequence.adapters.weights", "(1.0,) * len(contents)", RANDOM),
    Mutant("the key ignores the salt", "schedulers", "about = (adapters, sequence.request.cache_salt)",
           'about = (adapters, "")', RANDOM),
    Mutant("found blocks are computed again", "scheduler",
           "sequence.computed = BLOCK_TOKENS * (found + self.prefixes.restore(sequence, found))", "pass",
           RANDOM),
    Mutant("a preempted one counts as computed", "scheduler", "        sequence.computed = 0\n", "", RANDOM),
    Mutant("a preempted one keeps its adapters", "scheduler",
           "            sequence.adapters.release()\n        self._waiting.add",
           "            pass\n        self._waiting.add", RANDOM),
    Mutant("one that has ended keeps its adapters", "scheduler", "sequence.adapters.close()", "pass", RANDOM),
    Mutant("a slot is lost", "scheduler", "self._free_slots.append(self._running.pop(sequence))",
           "self._running.pop(sequence)", RANDOM),
    Mutant("a slot is used by two", "scheduler", "self._free_slots.pop()", "self._free_slots[-1]", RANDOM),
    Mutant("who is overtaken is not counted", "waiting", "self._overtaken[other] += 1", "pass",
           "starts:test_one_whose_adapter_lacks_room_is_overtaken_by_twice_as_many_as_may_run"),
    Mutant("the victim need not run", "scheduler", "if sequence not in self._running:", "if False:",
           "on_demand:test_a_policy_that_talks_nonsense_is_named"),
    Mutant("deadlines pass unnoticed", "deadlines", "while self.first <= now:", "while self.first < now - 1:",
           "on_demand:test_who_has_passed_the_deadline_is_named_once_wherever_it_is"),
    Mutant("deadlines of the dead pile up", "scheduler",
           "        self._deadlines.forget(sequence, self, self.running + self.waiting)\n", "",
           "flat_memory:test_deadlines_of_requests_that_have_ended_do_not_pile_up"),
    Mutant("guesses are written beyond the blocks", "scheduler",
           "guessed = min(guessed, spare, self._room_beyond(sequence))", "guessed = min(guessed, spare)", RANDOM),
    Mutant("guesses take the rows of prompts", "scheduler", "spare = min(limits.max_rows - needed, ",
           "spare = min(limits.max_rows, ", "scheduler:test_guesses_take_only_rows_that_nobody_needs"),
    Mutant("one reported row too many", "batches", "begin + count - sequence.report_from)",
           "begin + count - sequence.report_from + 1)", RANDOM),
    Mutant("reported rows leave none for who starts", "room", "self.reported + running <= self._samples and", "",
           "starts:test_whoever_starts_beside_a_reported_prompt_finds_a_sampled_row_left"),
    Mutant("the backlog never ends", "scheduler", "self._backlog.leave(sequence.id, now, started=True)", "pass",
           RANDOM),
    Mutant("a prefix leaves while somebody holds it", "prefix",
           "if isinstance(part, Node):\n                    self._grip(part)",
           "if isinstance(part, Node):\n                    pass", RANDOM),
    Mutant("a prefix that is used again is not the latest", "prefix", "if part.used != used:", "if False:",
           "prefix:test_what_a_request_uses_again_outlives_what_came_later"),
    Mutant("one block more is found than is equal", "prefix",
           "            if node is None:\n                break\n            nodes",
           "            if node is None:\n                node = next(iter(children.values()), None)\n"
           "            if node is None:\n                break\n            nodes", RANDOM),
    Mutant("time does not bound prompts", "room", "if seconds is None or left <= 0:", "if True:",
           "on_demand:test_prompts_get_the_rows_that_leave_those_that_decode_their_pace"),
    Mutant("adapters cost nothing", "room", "shape = shape._replace(adapters=shape.adapters + len(uses))", "pass",
           "starts:test_chunks_and_their_adapters_leave_those_that_decode_their_pace"),
    Mutant("positions cost nothing", "room", "attended=shape.attended + attended", "attended=shape.attended",
           "starts:test_chunks_and_their_adapters_leave_those_that_decode_their_pace"),
    Mutant("the last prompt comes first", "scheduler", "in self.policy.prompts(prompts, now) if",
           "in reversed(list(self.policy.prompts(prompts, now))) if", RANDOM),
    Mutant("the last come starts first", "fcfs", "return request.arrived, request.id",
           "return request.arrived, -request.id", RANDOM),
    Mutant("somebody is displaced for ever", "scheduler", "self._displaced.get(other, 0) + 1", "0",
           "on_demand:test_a_policy_may_let_one_that_waits_take_the_place_of_one_that_runs"),
    Mutant("who starts again has its rows twice", "scheduler", "one in self._running and one not in self._prompts]",
           "one in self._running]", "starts:test_one_that_is_displaced_and_starts_again_in_one_step_has_its_rows_once"),
    Mutant("others wait while the active make room", "scheduler",
           "(self.preempted == preempted and (is_second or not self._inactive))", "True",
           "starts:test_where_all_that_were_active_made_room_in_vain_others_have_their_turn"),
    Mutant("those that made way are forgotten", "scheduler", "(is_second or not self._inactive)", "True",
           "starts:test_those_that_made_way_for_one_that_cannot_start_have_their_turn"),
    Mutant("an order that has changed is read on", "waiting", "if len(self) > count:", "if False:",
           "starts:test_an_adapter_that_leaves_as_somebody_was_displaced_for_it_is_no_fault_of_the_policy"),
    Mutant("who was held back is forgotten", "waiting", "if left == 0:", "if True:",
           "starts:test_a_policy_that_holds_somebody_back_is_asked_again"),
    Mutant("news of adapters are not heard", "waiting", "if self._idle_at == changes:",
           "if self._idle_at != -1:", RANDOM),
    Mutant("news that come while the queue is looked at are not heard", "waiting", "self._idle_at = changes",
           "self._idle_at = self._changes()",
           "starts:test_a_load_that_ends_while_the_queue_is_looked_at_is_not_missed"),
    Mutant("new prefixes make no room", "scheduler", "self._refused == attempt",
           "self._refused and self._refused[:2] == attempt[:2]",
           "starts:test_what_another_has_computed_meanwhile_may_make_room_for_one_that_found_none"),
    Mutant("blocks that were found for nobody stay held", "scheduler",
           "            self.prefixes.let_go()\n            return None", "            return None", RANDOM),
    Mutant("what was found under another key is taken", "prefix_cache", " or found.key != key:", ":",
           "prefix_cache:test_what_was_found_before_its_adapters_changed_is_not_given"),
    Mutant("time begins at one", "scheduler", "is_new = not (sequence.started or sequence.preemptions)",
           "is_new = not sequence.started", "starts:test_who_has_started_at_the_beginning_of_time_starts_once"),
    Mutant("a batch is remembered too long", "scheduler", "        self._builder.forget()\n", "",
           "starts:test_no_handle_outlives_its_use"),
    Mutant("what windows have left behind stays", "scheduler", "self._tables.leave(sequence)", "pass",
           "windows:test_a_text_of_many_windows_runs_in_the_blocks_of_one"),
    Mutant("a block that a window still reaches is given back", "tables",
           "computed // BLOCK_TOKENS * BLOCK_TOKENS - self.window + 1", "computed + 17 - self.window", WINDOWS),
    Mutant("a long prompt gets no further blocks", "scheduler", "self._grow(sequence, sequence.blocks.size, now)",
           "pass", WINDOWS),
    Mutant("rows of a prompt have no blocks", "tables", "2 * BLOCK_TOKENS - 3 + max_rows", "max_rows",
           "windows:test_from_any_position_a_whole_step_of_rows_has_blocks"),
    Mutant("a prompt takes along what others would need", "scheduler",
           "self.prefixes.keep(sequence)  # for those who part from it here", "pass",
           "windows:test_who_parts_from_a_long_prompt_anywhere_finds_what_it_needs"),
    Mutant("a prefix is found whose window is gone", "prefix",
           "if self.needs.first(BLOCK_TOKENS * count) >= begin:", "if True:", WINDOWS),
    Mutant("blocks of windows leave while somebody holds them", "prefix_nodes",
           "return bool(part.blocks) and not part.is_shared", "return bool(part.blocks)",
           "prefix_windows:test_blocks_of_a_window_that_somebody_holds_stay"),
    Mutant("a window that is used again is not the latest", "prefix", "if part.used != used:", "if False:",
           "prefix_windows:test_what_nobody_sees_any_more_goes_before_what_the_end_needs"),
]  # fmt: skip


class Mutated(importlib.machinery.SourceFileLoader):
    """Loads a module whose source is another."""

    def __init__(self, name: str, path: str, source: str) -> None:
        super().__init__(name, path)
        self.source = source

    def get_code(self, fullname: str) -> CodeType:
        return compile(self.source, self.path, "exec")


class Finder(importlib.abc.MetaPathFinder):
    """Finds one module before others do."""

    def __init__(self, name: str, path: Path, source: str) -> None:
        self.name, self.path, self.source = name, path, source

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.name:
            return None
        return importlib.util.spec_from_loader(fullname, Mutated(fullname, str(self.path), self.source))


def is_anew(name: str) -> bool:
    return name.startswith("infeng_core.scheduling") or name in ("infeng_core.step", "scheduler_parts")


@contextmanager
def imported_with(file: str, old: str, new: str) -> Iterator[None]:
    """Let ``infeng_core.scheduling`` be one with a replaced text."""
    path = SOURCES / f"{file}.py"
    source = path.read_text(encoding="utf-8")
    assert source.count(old) == 1, f"{file}.py has {source.count(old)} times: {old}"
    kept = {name: module for name, module in sys.modules.items() if is_anew(name)}
    attributes = {name: getattr(infeng_core, name) for name in ("scheduling", "step")}
    profile = settings.get_current_profile_name()
    finder = Finder(f"infeng_core.scheduling.{file}", path, source.replace(old, new))
    try:
        for name in kept:
            del sys.modules[name]
        sys.meta_path.insert(0, finder)
        settings.load_profile("mutants")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(NIGHTLY, "1")  # with all of their examples
            yield
    finally:
        settings.load_profile(profile)
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if is_anew(name)]:
            del sys.modules[name]
        sys.modules.update(kept)
        for name, module in attributes.items():
            setattr(infeng_core, name, module)


settings.register_profile(
    "mutants",
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)


def imported(file: str) -> ModuleType:
    """Import a file of tests anew."""
    spec = importlib.util.spec_from_file_location(f"mutants.{file}", HERE / f"test_{file}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[spec.name]
    return module


def calls(function: Callable[..., None]) -> Iterator[Callable[[], None]]:
    """Give a call of a test for each of its parameters."""
    marks = [mark for mark in getattr(function, "pytestmark", []) if mark.name == "parametrize"]
    sets = []
    for names, values in (mark.args[:2] for mark in marks):
        several = names if isinstance(names, tuple) else (names,)
        sets.append([dict(zip(several, v if len(several) > 1 else (v,), strict=True)) for v in values])
    for chosen in itertools.product(*sets):
        arguments = {name: value for one in chosen for name, value in one.items()}
        yield lambda arguments=arguments: function(**arguments)  # type: ignore[misc]


def kill(killer: str) -> None:
    """Run a test."""
    file, _, name = killer.partition(":")
    found = getattr(imported(file), name)
    if name.startswith("random_"):
        found(LOADS)
    else:
        for call in calls(found):
            call()


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_seeded_bug_is_found(mutant):
    with imported_with(*mutant[1:4]), pytest.raises((Exception, ExceptionGroup)):
        kill(mutant.killer)


@pytest.mark.slow
def test_without_a_bug_nothing_is_found():
    with imported_with("scheduler", '"""The scheduler: ', '"""A scheduler: '):
        for killer in sorted({mutant.killer for mutant in MUTANTS}):
            kill(killer)
    assert sys.modules["infeng_core.scheduling"] is infeng_core.scheduling
