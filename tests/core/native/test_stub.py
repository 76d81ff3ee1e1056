"""The stub of each extension module matches it: names, members, fields, parameters, defaults."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from types import ModuleType

import infeng_calibrate._native
import infeng_packing._native
import pytest
from stubs import differences

import infeng_core._native

MODULES = [infeng_core._native, infeng_calibrate._native, infeng_packing._native]
IDS = ["core", "calibrate", "packing"]


def stub(module: ModuleType) -> Path:
    assert module.__file__ is not None
    return Path(module.__file__).with_name("_native.pyi")


@pytest.mark.parametrize("module", MODULES, ids=IDS)
def test_the_stub_matches_the_module(module: ModuleType) -> None:
    assert not differences(module, stub(module))


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("def cpu_quota", "def cpu_quotas", "module: the stub lacks cpu_quota"),
        ("OPS: tuple[str, ...]\n", "", "module: the stub lacks OPS"),
        (
            "    shared: int\n    per_worker: int\n",
            "    per_worker: int\n    shared: int\n",
            "Workspace: has the fields",
        ),
        ("    def huge_bytes", "    def big_bytes", "Arena: there is no big_bytes"),
        ("max_rows: int,", "rows: int,", "Program.__init__: takes"),
        ("spin_us: int = 50", "spin_us: int", "Pool.__init__: takes"),
        ("positions: int) -> RopeTables", "*, positions: int) -> RopeTables", "rope_tables: takes"),
        (
            "offset: int, panels: int, k: int, *, threads",
            "panels: int, offset: int, k: int, *, threads",
            "check_panels",
        ),
    ],
)
def test_every_kind_of_difference_is_seen(old: str, new: str, why: str, tmp_path: Path) -> None:
    module = infeng_core._native
    text = stub(module).read_text(encoding="utf-8")
    assert old in text
    (tmp_path / "changed.pyi").write_text(text.replace(old, new, 1), encoding="utf-8")
    found = differences(module, tmp_path / "changed.pyi")
    assert any(one.startswith(why) for one in found), found


def test_the_words_of_the_stub_are_those_of_the_module() -> None:
    module = infeng_core._native
    text = stub(module).read_text(encoding="utf-8")
    for place in (r"WEIGHT_FORMATS: dict\[str, ", r"def activation\(format: str\) -> ", r"    kind: "):
        found = re.search(rf"^{place}Literal\[(.+?)\]", text, re.MULTILINE)
        assert found, place
        words = set(ast.literal_eval(f"[{found[1]}]"))
        kinds = {operand.kind for operands in module.row_ops().values() for operand in operands}
        assert words >= kinds if "kind" in place else words == set(module.WEIGHT_FORMATS.values())
    assert {"epilogue", "layernorm"} <= module.row_ops().keys() & set(module.OPS)


def records(module: ModuleType) -> set[str]:
    return {name for name, value in vars(module).items() if hasattr(value, "_fields")}


def test_arguments_across_the_native_border_have_names() -> None:
    """A call takes and gives single values and NamedTuples: no dictionary of anything, no tuple of five and more."""
    assert records(infeng_core._native)
    for module in MODULES:
        text = stub(module).read_text(encoding="utf-8")
        assert "dict[str, Any]" not in text and "dict[str, object]" not in text
        for part in text.split("tuple[")[1:]:
            assert part.split("]")[0].count(",") < 4, part[:80]
