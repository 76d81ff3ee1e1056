"""Without the wheel that tries kernel libraries, none but the reference is mapped or used."""

from __future__ import annotations

from pathlib import Path

import pytest
from workshop import Workshop

from infeng_core.errors import PluginError, UsageError
from infeng_core.formats import packing

WITHOUT = {"plugins__disable": ["inspect"]}


def test_a_library_that_nothing_tries_is_not_mapped_and_the_warning_names_the_wheel(
    workshop: Workshop, capsys: pytest.CaptureFixture[str]
) -> None:
    path = workshop.plugin("first")
    selector = workshop.selector(path, **WITHOUT)
    assert workshop.chosen(selector).startswith("reference/")
    state = next(state for state in selector.states if state.name == "first")
    assert (state.reason.code, state.native, state.check) == ("untried", None, None)
    assert str(path.parent) not in Path("/proc/self/maps").read_text()
    warnings = [line for line in capsys.readouterr().err.splitlines() if "plugin first is not used" in line]
    assert len(warnings) == 1 and "install the wheel infeng-inspect" in warnings[0]
    with pytest.raises(PluginError, match=r"nothing that is installed tries kernel libraries: install the wheel"):
        workshop.selector(path, kernels__strict=True, **WITHOUT)


def test_weights_that_nothing_packs_are_an_error_that_names_the_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: ())
    packing.packer.cache_clear()
    with pytest.raises(UsageError, match=r"nothing that is installed packs them: install the wheel infeng-packing$"):
        packing.packer()
    monkeypatch.undo()
    assert packing.packer() is packing.packer()
