"""Installed peers do the works of a comparison on a small model of their own export."""

import subprocess
from pathlib import Path

import pytest
from infeng_bench.engine.work import Work
from infeng_bench.models import synthetic
from infeng_peers import known, serve
from infeng_peers.environment import Environment
from infeng_peers.process import EngineProcess

PLACES = {name: Environment(known.peer(name)) for name in known.NAMES}
MISSING = {name: place.missing() for name, place in PLACES.items()}  # of the user's cache: the tests have their own
PATHS = {name: (place.tools, place.python) for name, place in PLACES.items()}
WORKS = ("decode:rows=1,context=24,steps=3", "decode:rows=3,context=16,steps=4", "prefill:rows=2,context=40")


@pytest.mark.slow
@pytest.mark.parametrize("name", known.NAMES)
def test_a_peer_counts_every_token_of_every_work(name: str, wide_config: Path, tmp_path: Path) -> None:
    if MISSING[name]:
        pytest.skip(f"asks the peer {name}, which is {MISSING[name]}")
    peer, (tools, python) = known.peer(name), PATHS[name]
    source = synthetic.hf_directory(wide_config)
    commands = peer.export_commands(tools, source, tmp_path, peer.FORMATS["int4-g64"])
    for command in commands:
        subprocess.run(command, check=True, capture_output=True)
    model = tmp_path / peer.MODEL_FILE if commands else source
    command = [str(python), "-P", serve.__file__, str(peer.path), str(model), "--threads", "1"]
    engine = EngineProcess(name, command, tmp_path / "log", 300)
    try:
        told = engine.ready()
        assert told["engine"] == name
        assert told["details"]["kv_bytes_per_position"] > 0
        for work in map(Work.parse, WORKS):
            assert engine.measure(work, 0)["tokens"] == work.tokens
    finally:
        engine.close()
