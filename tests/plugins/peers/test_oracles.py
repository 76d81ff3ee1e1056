"""The process that computes the same op elsewhere."""

import sys
from contextlib import closing
from pathlib import Path

import pytest
from infeng_bench.processes import PeerError
from infeng_peers import oracles


def test_an_oracle_that_exits_at_once_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "ends.py"
    script.write_text("print('hello')")
    monkeypatch.setitem(oracles.SCRIPTS, "torch", str(script))
    with pytest.raises(PeerError, match="no JSON object"):
        oracles.Oracle("torch", sys.executable, 1)


def test_an_oracles_own_error_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "complains.py"
    script.write_text(
        'import json, sys\nprint(json.dumps({"ready": True, "types": {"attention": ["f32"]}}), flush=True)\n'
        'for line in sys.stdin: print(json.dumps({"error": "no memory"}), flush=True)'
    )
    monkeypatch.setitem(oracles.SCRIPTS, "torch", str(script))
    with closing(oracles.Oracle("torch", sys.executable, 1)) as oracle, pytest.raises(PeerError, match="no memory"):
        oracle.attention(heads=1)
    assert oracle.process.returncode is not None


def test_an_oracle_that_exits_between_two_questions_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "dies.py"
    script.write_text('import json, sys\nprint(json.dumps({"ready": True}), flush=True)\nsys.stdin.readline()')
    monkeypatch.setitem(oracles.SCRIPTS, "torch", str(script))
    oracle = oracles.Oracle("torch", sys.executable, 1)
    with closing(oracle), pytest.raises(PeerError, match="its process ended with status 0"):
        oracle.clear()
