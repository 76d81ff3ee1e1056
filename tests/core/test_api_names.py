"""The names of ``infeng_core.api``: a stub lists them, and the module beside it imports them when asked."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from infeng_core import api
from infeng_core.api import adapters, engines, formats, kernels, servers
from infeng_core.api.lazy import attach


@pytest.mark.parametrize("module", [api, adapters, engines, formats, kernels, servers])
def test_a_module_hands_out_exactly_what_its_stub_exports(module: ModuleType) -> None:
    assert module.__file__
    tree = ast.parse(Path(module.__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    exported = next(ast.literal_eval(node.value) for node in tree.body if isinstance(node, ast.Assign))
    assert module.__all__ == sorted(exported) == dir(module)


def test_a_stub_may_rename_and_name_modules(tmp_path: Path) -> None:
    path = tmp_path / "few.pyi"
    path.write_text(
        '"""Doc."""\n\nfrom os.path import join as joined\nfrom json import (\n    decoder,\n    loads,\n)\n'
    )
    imported, listed, names = attach(__name__, str(path.with_suffix(".py")))
    import json.decoder
    import os.path

    assert listed() == names == ["decoder", "joined", "loads"]
    assert (imported("decoder"), imported("joined"), imported("loads")) == (json.decoder, os.path.join, json.loads)
    for unknown in ("join", "absent"):
        with pytest.raises(AttributeError, match=rf"^module '{__name__}' has no attribute '{unknown}'$"):
            imported(unknown)


def test_an_unknown_name_is_an_import_error_that_names_it() -> None:
    words = [sys.executable, "-P", "-c", "from infeng_core.api.formats import Absent"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert "ImportError: cannot import name 'Absent' from 'infeng_core.api.formats'" in done.stderr
