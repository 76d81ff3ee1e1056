"""Edits of code, the base of the mutants: they match by structure, exactly once, or show the code."""

from __future__ import annotations

import ast
from typing import Any

import pytest
from code_edits import Drop, Edit, Insert, NoMatchError, Replace, edited

SOURCE = """
class Pool:
    def take(self, count):
        self.taken += count  # a comment
        if count <= self.free or self.grows:
            self.free -= count
            return list(range(
                count - 1))
        return None

    def free_all(self):
        self.free = 0


def take(count):
    return count
"""


@pytest.mark.parametrize(
    ("edit", "becomes"),
    [
        (Replace("_a <= _b", "_a < _b"), "if count < self.free or self.grows:"),
        (Replace("_a or _", "_a"), "if count <= self.free:"),
        (Replace("_a or _b", "_b or _a"), "if self.grows or count <= self.free:"),
        (Replace("_a - 1", "_a"), "return list(range(count))"),
        (Replace("list(_)", "[]"), "return []"),
        (Drop("_.free -= _"), "pass"),
        (Insert("return None", "self.free = 9"), "self.free = 9"),
    ],
    ids=str,
)
def test_an_edit_changes_what_it_names_and_nothing_else(edit: Edit, becomes: str):
    before, after = ast.unparse(ast.parse(SOURCE)), ast.unparse(edited(SOURCE, "Pool.take", edit))
    changed = set(after.splitlines()) - set(before.splitlines())
    assert [line.strip() for line in changed] == [becomes]


def test_edited_code_runs():
    space: dict[str, Any] = {}
    exec(compile(edited(SOURCE, "take", Replace("count", "count + 1")), "edited", "exec"), space)
    assert space["take"](1) == 2


@pytest.mark.parametrize(
    ("where", "edit", "said"),
    [
        ("Pool.takes", Drop("_.free -= _"), "Pool.takes: there is no 'takes', but take, free_all"),
        ("Pol.take", Drop("_.free -= _"), "Pol.take: there is no 'Pol', but Pool, take"),
        ("Pool.take", Replace("_ < _", "True"), "0 times `_ < _`, among:\n    count <= self.free"),
        ("Pool.take", Drop("_ -= _"), None),
        ("Pool.take", Replace("count", "0"), "4 times `count`, among:"),
        ("Pool.free_all", Drop("self.taken = 0"), "0 times `self.taken = 0`, among:\n    self.free = 0"),
    ],
)
def test_an_edit_without_a_single_match_shows_the_code(where: str, edit: Edit, said: str | None):
    if said is None:
        edited(SOURCE, where, edit)
        return
    with pytest.raises(NoMatchError) as caught:
        edited(SOURCE, where, edit)
    assert said in str(caught.value)
