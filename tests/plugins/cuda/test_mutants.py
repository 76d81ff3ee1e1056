"""Faults that are put into kernels for GPUs are found by comparing the emulated ones with the reference."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from plugins.cuda.workshop import Edit, library, outcome

MUTANTS = tomllib.loads((Path(__file__).parent / "mutants.toml").read_text())


QUICK = ("another multiply-add of a norm", "contraction in rope", "clamp of a key", "order of experts")
ALL = [pytest.param(name, marks=pytest.mark.slow if name in QUICK else pytest.mark.nightly) for name in MUTANTS]


@pytest.mark.parametrize("name", ALL)
def test_fault_is_found(name: str, tmp_path: Path) -> None:
    mutant = MUTANTS[name]
    edit = Edit(mutant["file"], mutant["old"], mutant["new"])
    assert outcome(library(mutant["kernel"], tmp_path / "mutant", edit)), "no case shows it"


@pytest.mark.slow
@pytest.mark.parametrize("kernel", ["combine"])
def test_sources_without_a_fault_equal_the_reference(kernel: str, tmp_path: Path) -> None:
    assert outcome(library(kernel, tmp_path / "whole")) == ""
