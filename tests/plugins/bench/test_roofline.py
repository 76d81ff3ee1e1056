"""What the machine can do: structure and arithmetic, not figures."""

import contextlib
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from infeng_bench import options
from infeng_bench.kernels import probe, roofline

from infeng_core.cli import main
from infeng_core.errors import UsageError
from infeng_core.machine.cpu import closure, detect


def test_the_command_writes_a_result_of_the_schema(tmp_path: Path, schema: Any) -> None:
    out = tmp_path / "roofline.json"
    assert main(["bench", "roofline", "--buffer", "4MB", "--rounds", "1", "-t", "2", "--json", str(out)]) == 0
    result = json.loads(out.read_text())
    schema(result)
    assert result["threads"] == 2
    assert list(result["int8_macs_per_s"]) == probe.int8_isas()


def test_only_instruction_sets_of_this_processor_run() -> None:
    features = detect().features
    assert all(closure([isa]) <= features for isa in probe.int8_isas())
    if detect().arch == "x86_64" and "avx2" in features:
        assert "avx2" in probe.int8_isas()


def test_a_masked_feature_is_never_executed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFENG_CPU_FEATURES", "-avx2")
    assert not {"avx2", "avx512_vnni"} & set(probe.int8_isas())
    with pytest.raises(UsageError, match="does not have it"):
        probe.int8_macs_per_s("avx2", 1)


def test_an_unknown_instruction_set_is_an_error() -> None:
    with pytest.raises(UsageError, match="no such instruction set"):
        probe.int8_macs_per_s("avx3", 1)


def test_every_loop_of_this_processor_runs_on_several_threads() -> None:
    for isa in probe.int8_isas():
        assert probe.int8_macs_per_s(isa, 3, seconds=0.002) > 0


@pytest.mark.parametrize("streams", [1, 2, 4])
def test_memory_bandwidth_is_measured_with_every_setting(streams: int) -> None:
    with contextlib.closing(probe.Memory(3 << 20, threads=3)) as memory:
        assert memory.nbytes == 2 << 20
        assert memory.read(3, streams, 4096) > 0
        assert memory.read(1, streams, 0) > 0
    with pytest.raises(ValueError, match="after close"):
        memory.read(1, streams, 0)


def test_a_kernel_is_compared_with_the_peak_of_its_own_instructions() -> None:
    found = roofline.Roofline(2, 30e9, 17e9, {"avx2": 1.0, "avx512bw": 2.0, "avx512_vnni": 4.0}, 3e9, {})
    assert found.int8_macs_per_s == 4.0
    assert found.int8_of(["avx2", "fma"]) == 1.0
    assert found.int8_of(["avx512bw", "avx512vl"]) == 2.0
    assert found.int8_of(["avx512_vnni", "avx512bw"]) == 4.0
    assert found.int8_of([]) == 0.0


@pytest.mark.parametrize(("text", "nbytes"), [("512MB", 512 * 10**6), ("7", 7), ("2g", 2 * 10**9), ("3kB", 3000)])
def test_sizes_with_units_are_parsed(text: str, nbytes: int) -> None:
    assert options.size(text) == nbytes


@pytest.mark.parametrize("arguments", [["--buffer", "many"], ["--buffer", "5mm"], ["-t", "0"], ["--rounds", "x"]])
def test_a_bad_number_is_a_usage_error(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["bench", "roofline", *arguments])
    assert caught.value.code == 2
    assert arguments[1] in capsys.readouterr().err


@pytest.mark.skipif(detect().arch != "x86_64", reason="the loops are x86 assembly")
@pytest.mark.skipif(shutil.which("objdump") is None, reason="objdump (binutils) is not installed")
def test_a_loop_has_the_counted_products_and_spills_no_register() -> None:
    library = Path(probe.__file__).parents[1].joinpath("libinfeng_bench.so")
    listing = subprocess.run(["objdump", "-d", "-C", str(library)], check=True, capture_output=True, text=True).stdout
    found = {}
    for name, body in re.findall(
        r"<infeng_bench::\(anonymous namespace\)::(\w+)\(unsigned long\)>:\n(.*?)\n\n", listing, re.S
    ):
        found[name] = (len(re.findall(r"\bvpmaddubsw\b", body)), len(re.findall(r"\b(?:vpdpbusd|tdpbusd)\b", body)))
        assert name == "amx_int8" or "%rsp" not in body
    assert found.items() >= {"avx2": (48, 0), "avx512bw": (48, 0), "avx512_vnni": (0, 12)}.items()
    assert {found.get("avx_vnni", (0, 12)), found.get("amx_int8", (0, 4))} == {(0, 12), (0, 4)}
