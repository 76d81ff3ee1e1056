"""Seeded bugs in the scheduler: for each, a test that finds it.

A mutant is an edit (code_edits.py) of one function in ``infeng_core/scheduling``. The rooms ``scheduling`` and ``step``
are imported a second time in this process, with the mutated code, under their own names; the test files are imported
anew against that, and the named tests are called. Afterwards the real modules are back. Random tests run with fixed
seeds and without shrinking.
"""

from __future__ import annotations

import ast
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
from code_edits import Drop, Edit, Insert, Replace, edited
from drawn import NIGHTLY
from hypothesis import HealthCheck, Phase, settings

import infeng_core
import infeng_core.batch
import infeng_core.scheduling

HERE = Path(__file__).parent
SOURCES = Path(infeng_core.__file__).parent / "scheduling"


class Mutant(NamedTuple):
    name: str
    where: str
    """Module in ``infeng_core.scheduling``, a colon, and the function."""
    edit: Edit
    killer: str
    """The file of tests without ``test_``, a colon, and the test."""


RANDOM, WINDOWS = "scheduler_stateful:random_loads", "scheduler_stateful:random_windows"

LOADS = 200
"""Random loads within which a bug is found."""

MUTANTS = [
    Mutant("blocks stay with who has ended", "scheduler:Scheduler._stop",
           Replace("_.release(_a)", "_a.forget_blocks()"),
           "on_demand:test_without_free_blocks_the_latest_sequence_is_preempted_and_keeps_its_tokens"),
    Mutant("a block is shared before it is written", "prefix_cache:PrefixCache.keep",
           Replace("_a.computed // _b", "min(len(_a.blocks), _a.length // _b)"), RANDOM),
    Mutant("a prompt may be found whole", "prefix_cache:_most_shared",
           Replace("_a.length - 1 if _b else _c", "_a.length if _b else _c"), RANDOM),
    Mutant("reported rows may be found", "prefix_cache:_most_shared",
           Replace("_a if _.report_from is None else _", "_a"), RANDOM),
    Mutant("the key ignores weights", "schedulers:Schedulers.key_of",
           Replace("(id_, weight)", "(id_, 1.0)"), RANDOM),
    Mutant("the block in which an adapter begins is the base's", "schedulers:Schedulers.turns_of",
           Replace("_a // BLOCK_TOKENS", "_a // BLOCK_TOKENS + 1"), RANDOM),
    Mutant("adapters that begin elsewhere share", "prefix_cache:turn_mark",
           Replace("[_a, _b, begin]", "[_a, _b]"), RANDOM),
    Mutant("an adapter acts on the rows before it", "batches:BatchBuilder._rows_of_adapters",
           Replace("any(map(is_split, segments))", "False"), RANDOM),
    Mutant("the key ignores the salt", "schedulers:Schedulers.key_of", Replace("_.cache_salt", "''"), RANDOM),
    Mutant("found blocks are computed again", "scheduler:Scheduler._start_next", Drop("_.computed = _"), RANDOM),
    Mutant("a preempted one counts as computed", "scheduler:Scheduler.preempt", Drop("_.computed = _"), RANDOM),
    Mutant("a preempted one keeps its adapters", "scheduler:Scheduler.preempt", Drop("_.release()"), RANDOM),
    Mutant("one that has ended keeps its adapters", "scheduler:Scheduler.drop", Drop("_.close()"), RANDOM),
    Mutant("a slot is lost", "scheduler:Scheduler._stop", Replace("_.append(_a)", "_a"), RANDOM),
    Mutant("a slot is used by two", "scheduler:Scheduler._start_next", Replace("_a.pop()", "_a[-1]"), RANDOM),
    Mutant("who is overtaken is not counted", "waiting:Waiting.take", Drop("_[_] += 1"),
           "starts:test_a_request_whose_adapter_lacks_room_is_overtaken_at_most_twice_the_slots"),
    Mutant("the victim need not run", "scheduler:Scheduler.preempt", Replace("_ not in _", "False"),
           "on_demand:test_a_policy_with_invalid_answers_is_named"),
    Mutant("deadlines pass unnoticed", "deadlines:Deadlines.passed", Replace("_a <= _b", "_a < _b - 1"),
           "on_demand:test_a_request_past_its_deadline_is_returned_once_waiting_or_running"),
    Mutant("deadlines of the dead pile up", "scheduler:Scheduler.drop", Drop("_.forget(_, _, _)"),
           "flat_memory:test_deadlines_of_requests_that_have_ended_do_not_pile_up"),
    Mutant("guesses are written beyond the blocks", "scheduler:Scheduler._guessed_work",
           Replace("min(_a, _b, _)", "min(_a, _b)"), RANDOM),
    Mutant("guesses take the rows of prompts", "scheduler:Scheduler._guessed_work",
           Replace("_a.max_rows - _", "_a.max_rows"), "scheduler:test_guesses_take_only_free_rows"),
    Mutant("one reported row too many", "batches:prompt_work",
           Replace("_a - _b.report_from", "_a - _b.report_from + 1"), RANDOM),
    Mutant("reported rows leave none for who starts", "step_budget:StepBudget.may_run", Replace("_ and _b", "_b"),
           "starts:test_a_request_that_starts_beside_a_reported_prompt_finds_a_sampled_row"),
    Mutant("the backlog never ends", "scheduler:Scheduler._start_next", Drop("_.leave(_, _, started=_)"), RANDOM),
    Mutant("a held prefix is evicted", "prefix:PrefixTree.shared", Drop("_._grip(_)"), RANDOM),
    Mutant("a prefix that is used again is not the latest", "prefix:PrefixTree.evict", Replace("_.used != _", "False"),
           "prefix:test_a_reused_prefix_is_evicted_after_later_unused_ones"),
    Mutant("one block more is found than is equal", "prefix:PrefixTree._path",
           Replace("children.get(_a)", "children.get(_a) or next(iter(children.values()), None)"), RANDOM),
    Mutant("time does not bound prompts", "step_budget:rows_of_prompt", Replace("_ is None or _", "True"),
           "on_demand:test_prompts_get_only_rows_that_keep_the_step_time_of_decoding_requests"),
    Mutant("adapters cost nothing", "step_budget:StepBudget.take", Replace("_a.adapters + _", "_a.adapters"),
           "starts:test_chunks_with_adapters_keep_the_step_time_of_decoding_requests"),
    Mutant("positions cost nothing", "step_budget:StepBudget.take", Replace("_a.attended + _", "_a.attended"),
           "starts:test_chunks_with_adapters_keep_the_step_time_of_decoding_requests"),
    Mutant("the last prompt comes first", "scheduler:Scheduler._chunks",
           Replace("_a.prompts(_b, _c)", "reversed(list(_a.prompts(_b, _c)))"), RANDOM),
    Mutant("the last come starts first", "fcfs:_arrival", Replace("_a.id", "-_a.id"), RANDOM),
    Mutant("a request is displaced for ever", "scheduler:Scheduler._displace", Replace("_ + 1", "0"),
           "on_demand:test_a_policy_may_preempt_a_running_request_for_a_waiting_one"),
    Mutant("who starts again has its rows twice", "scheduler:Scheduler._next_batch",
           Replace("_a in _b and _ not in _", "_a in _b"),
           "starts:test_a_sequence_displaced_and_restarted_in_one_step_has_its_rows_once"),
    Mutant("others wait while the active make room", "scheduler:Scheduler.next_batch", Replace("_ == _ and _", "True"),
           "starts:test_if_all_active_requests_made_room_in_vain_others_get_rows"),
    Mutant("displaced requests are forgotten", "scheduler:Scheduler.next_batch", Replace("_ or not _", "True"),
           "starts:test_requests_displaced_for_one_that_cannot_start_get_rows_again"),
    Mutant("an order that has changed is read on", "waiting:Waiting.take", Replace("len(_) > _", "False"),
           "starts:test_an_adapter_evicted_after_a_displacement_is_no_fault_of_the_policy"),
    Mutant("who was held back is forgotten", "waiting:Waiting.take", Replace("_ == 0", "True"),
           "starts:test_a_policy_that_holds_a_request_back_is_called_again"),
    Mutant("news of adapters are not heard", "waiting:Waiting.take",
           Replace("_a._idle_at == _", "_a._idle_at != -1"), RANDOM),
    Mutant("news that come while the queue is looked at are not heard", "waiting:Waiting.take",
           Insert("_._idle_at = changes", "changes = self._changes()"),
           "starts:test_a_load_that_ends_while_the_queue_is_looked_at_is_not_missed"),
    Mutant("new prefixes make no room", "scheduler:Scheduler._has_blocks",
           Replace("_a._refused == _b", "_a._refused and _a._refused[:2] == _b[:2]"),
           "starts:test_blocks_computed_by_another_request_may_let_a_waiting_one_start"),
    Mutant("found blocks that are not taken stay held", "scheduler:Scheduler._start_next", Drop("_.let_go()"),
           RANDOM),
    Mutant("what was found under another key is taken", "prefix_cache:PrefixCache.find",
           Replace("_a or _b or _.key != _", "_a or _b"),
           "prefix_cache:test_blocks_found_before_a_change_of_adapters_are_not_used"),
    Mutant("time begins at one", "scheduler:Scheduler._start_next", Replace("_a.started or _", "_a.started"),
           "starts:test_a_request_started_at_time_zero_starts_once"),
    Mutant("a batch is remembered too long", "scheduler:Scheduler._stop", Drop("_.forget()"),
           "starts:test_no_adapter_handle_outlives_its_use"),
    Mutant("what windows have left behind stays", "scheduler:Scheduler.commit", Drop("_.leave(_)"),
           "windows:test_a_text_of_many_windows_runs_in_the_blocks_of_one"),
    Mutant("a block that a window still reaches is given back", "tables:Needs.first",
           Replace("_a // _ * _ - _b + 1", "_a + 17 - _b"), WINDOWS),
    Mutant("a long prompt gets no further blocks", "scheduler:Scheduler._decoding", Drop("_._grow(_, _.size, _)"),
           WINDOWS),
    Mutant("rows of a prompt have no blocks", "tables:Needs.__init__", Replace("_a + 2 * _ - 3 + _b", "_a + _b"),
           "windows:test_from_any_position_a_whole_step_of_rows_has_blocks"),
    Mutant("a prompt takes along what others would need", "scheduler:Scheduler.commit", Drop("if _ in _: _.keep(_)"),
           "windows:test_a_request_that_diverges_anywhere_in_a_long_prompt_finds_its_blocks"),
    Mutant("a prefix is found whose window is gone", "prefix:PrefixTree._path", Replace("_.first(_) >= _", "True"),
           WINDOWS),
    Mutant("held window blocks are evicted", "prefix:_is_evictable",
           Replace("_a and not _.is_shared", "_a"), "prefix_windows:test_held_window_blocks_stay"),
    Mutant("a window that is used again is not the latest", "prefix:PrefixTree.evict", Replace("_.used != _", "False"),
           "prefix_windows:test_blocks_behind_every_window_are_evicted_before_needed_ones"),
]  # fmt: skip


class Mutated(importlib.machinery.SourceFileLoader):
    """Loads a module whose code is another."""

    def __init__(self, name: str, path: str, code: ast.Module) -> None:
        super().__init__(name, path)
        self.code = code

    def get_code(self, fullname: str) -> CodeType:
        return compile(self.code, self.path, "exec")


class Finder(importlib.abc.MetaPathFinder):
    """Finds one module before others do."""

    def __init__(self, name: str, path: Path, code: ast.Module) -> None:
        self.name, self.path, self.code = name, path, code

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.name:
            return None
        return importlib.util.spec_from_loader(fullname, Mutated(fullname, str(self.path), self.code))


def mutated(where: str, edit: Edit) -> tuple[str, Path, ast.Module]:
    """Return a module's name, its file, and its code with one function edited."""
    module, _, function = where.partition(":")
    path = SOURCES / f"{module}.py"
    return f"infeng_core.scheduling.{module}", path, edited(path.read_text(encoding="utf-8"), function, edit)


def is_anew(name: str) -> bool:
    return name.startswith("infeng_core.scheduling") or name in ("infeng_core.batch", "scheduler_parts")


@contextmanager
def imported_with(where: str, edit: Edit) -> Iterator[None]:
    """Let ``infeng_core.scheduling`` be one with an edited function."""
    finder = Finder(*mutated(where, edit))
    kept = {name: module for name, module in sys.modules.items() if is_anew(name)}
    attributes = {name: getattr(infeng_core, name) for name in ("scheduling", "batch")}
    profile = settings.get_current_profile_name()
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
    with imported_with(mutant.where, mutant.edit), pytest.raises((Exception, ExceptionGroup)):
        kill(mutant.killer)


@pytest.mark.slow
def test_every_bug_can_be_seeded():
    assert len(MUTANTS) == 53
    for mutant in MUTANTS:
        _, path, code = mutated(mutant.where, mutant.edit)
        assert ast.dump(code) != ast.dump(ast.parse(path.read_text(encoding="utf-8"))), mutant.name


@pytest.mark.slow
def test_without_a_bug_nothing_is_found():
    with imported_with("fcfs:_arrival", Replace("_a.id", "+_a.id")):
        for killer in sorted({mutant.killer for mutant in MUTANTS}):
            kill(killer)
    assert sys.modules["infeng_core.scheduling"] is infeng_core.scheduling
