"""The page of the hybrid: its tables are those of its commands."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from infeng_core.cli import main

PAGE = (Path(__file__).parents[2] / "docs" / "hybrid.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^infeng (bench hybrid .* --cpu-macs \S+)$", PAGE, re.MULTILINE)
TITLES = {"qwen3-30b-a3b": "Qwen3-30B-A3B", "gpt-oss-20b": "gpt-oss-20b"}


def lines_of(model: str) -> dict[tuple[str, str, str], list[str]]:
    """Return the cells of a model's table by DRAM, PCIe and policy."""
    text = PAGE.split(f"**{TITLES[model]}**\n\n")[1].split("\n\n")[0].replace("*", "").replace("`", "")
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()[2:]]
    return {(dram, pcie, policy): figures for dram, pcie, policy, *figures in cells}


def shown(value: float) -> str:
    """Return tokens per second as the page has them."""
    return f"{value:,.0f}" if value >= 99.95 else f"{value:.1f}"


def test_every_line_of_a_table_has_a_command() -> None:
    assert len(COMMANDS) == 12
    for model in TITLES:
        words = [shlex.split(command) for command in COMMANDS if model in command]
        machines = {tuple(each[each.index(name) + 1] for name in ("--dram", "--pcie")) for each in words}
        assert machines == {(dram, pcie) for dram, pcie, _ in lines_of(model) if pcie != "-"}


@pytest.mark.slow
@pytest.mark.parametrize("command", [COMMANDS[0], COMMANDS[-1]])
def test_the_figures_for_few_rows_are_those_of_the_command(command: str, tmp_path: Path) -> None:
    words = shlex.split(command)
    assert main([*words, "--rows", "1,4", "--json", str(tmp_path / "out.json")]) == 0
    found = json.loads((tmp_path / "out.json").read_text())["measurements"]
    dram, pcie = (words[words.index(name) + 1] for name in ("--dram", "--pcie"))
    table, checked = lines_of(words[2]), 0
    for policy in {one["policy"] for one in found}:
        line = table.get((dram, "-" if policy == "alone" else pcie, policy))
        if line is not None:  # a machine's figures without a GPU stand once
            assert line[:2] == [shown(one["tokens_per_s"]) for one in found if one["policy"] == policy]
            checked += 1
    assert checked >= 5
