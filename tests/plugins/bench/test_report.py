"""The page that a report writes: every result is in it, and it needs nothing else."""

import html
import json
import re
from pathlib import Path
from typing import Any

import pytest
from infeng_bench import comparison, popularity, results
from infeng_bench.comparison import Round
from infeng_bench.roofline import Roofline
from infeng_bench.serving import Job, Served, Trace
from infeng_bench.works import Work

from infeng_core.cli import main

NO_PLOTLY = "draws with the package plotly, which is not installed here"
CEILINGS = Roofline(2, 3e10, 1e10, {"avx2": 1e11, "avx512_vnni": 4e11}, 3e9, {})


def comparison_of(work: str, peer: float) -> dict[str, Any]:
    """Return the figures of one work against a peer that is ``peer`` times as fast as the other one."""
    found = [Round({"infeng": 50.0 + i, "openvino": 10 * peer, "llama_cpp": 10.0}, {}, 0.0) for i in range(6)]
    found = [Round(one.rates, dict.fromkeys(one.rates, 1.0), 0.0) for one in found]
    told: dict[str, Any] = {"infeng": {}, "openvino": {}, "llama_cpp": {}}
    return comparison.compared(Work.parse(work), found, told, None)


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    single = comparison_of("decode:rows=1,context=1024", 2.0)
    work = single.pop("work")
    several = [comparison_of("prefill:rows=4,context=1024", 3.0), comparison_of("decode:rows=16,context=512", 4.0)]
    facts = {"linear": "layers.*.qkv_proj", "n": 2560, "k": 2048, "format": "int4-g64", "copies": 1}
    gemm = [
        {**facts, "kernel": f"avx512/k{rows}", "rows": rows, "gmacs_per_s": 10.0 * rows, "bytes_per_s": 2e10 / rows}
        for rows in (1, 4)
    ]
    for line in gemm:
        line |= {"seconds": {"median": 1e-3, "min": 1e-3, "max": 1e-3}, "macs_per_cycle": 2.0}
    common = {"model": "m", "format": "int4-g64", "threads": 2, "seed": 0}
    told = {"seconds_in_all": 1.0, "engine_details": {}}
    made = {
        "one.json": results.record("compare", {**told, **single}, work=work, **common),
        "two.json": results.record("compare", {**told, "measurements": several}, **{**common, "model": "<i>x</i>"}),
        "gemm.json": results.record("gemm", {"measurements": gemm, "roofline": CEILINGS.to_dict()}, **common),
        "roofline.json": results.record("roofline", CEILINGS.to_dict(), threads=2),
    }
    for name, result in made.items():
        results.write(tmp_path / name, result)
    return [tmp_path / name for name in made]


def test_the_page_holds_every_result_and_needs_no_network(files: list[Path], tmp_path: Path) -> None:
    pytest.importorskip("plotly", reason=NO_PLOTLY)
    out = tmp_path / "report.html"
    assert main(["bench", "report", *map(str, files), "-o", str(out)]) == 0
    text = out.read_text(encoding="utf-8")
    raw = [json.loads(html.unescape(found)) for found in re.findall(r"<pre>(.*?)</pre>", text, re.DOTALL)]
    assert raw == [json.loads(path.read_text()) for path in files]
    for work in ("decode:rows=1,context=1024", "prefill:rows=4,context=1024", "decode:rows=16,context=512"):
        assert f"<td>{work}</td>" in text
    assert "avx512/k4" in text
    assert "against llama_cpp" in text and "against openvino" in text
    assert not re.search(r"<(script|link|img)[^>]*(src|href)=.https?:", text)
    assert "<i>x</i>" not in text  # what a file says is text, not markup
    assert text.count("Plotly.newPlot(") == 4  # ratios, two of rates, the roofline


def test_the_table_shows_ratio_and_bound(files: list[Path], tmp_path: Path) -> None:
    pytest.importorskip("plotly", reason=NO_PLOTLY)
    out = tmp_path / "report.html"
    assert main(["bench", "report", str(files[0]), "-o", str(out)]) == 0
    row = next(row for row in re.findall(r"<tr>(.*?)</tr>", out.read_text()) if "<td>llama_cpp</td><td>10</td>" in row)
    cells = re.findall(r"<td>(.*?)</td>", row)
    assert "5.25" in cells  # the median of 5.0 ... 5.5
    assert "5" in cells  # the smallest of six: the lower bound


def swept() -> dict[str, Any]:
    """Return a sweep over one and two adapters, ranks 8 and 16, on two engines."""
    pace = {("infeng", 8): 0.1, ("infeng", 16): 0.125, ("llama_cpp", 8): 0.5, ("llama_cpp", 16): 0.625}
    cells = []
    for count, rank in ((1, 8), (2, 8), (1, 16), (2, 16)):
        engines = {}
        for name in ("infeng", "llama_cpp"):
            step = pace[name, rank] * count
            job = Job(0.0, [1] * 4, 2, "a0")
            trace = Trace(job, 0.0, [step, 2 * step], [5, 6])
            engines[name] = {"mixed": [Served([trace], 2 * step, step, 1000)] * 5}
        figures = popularity.compared(engines, 1, is_closed=True)
        times = {"adapter_load_ms": 9.0, "adapter_swap_ms": 3.0}
        figures["engines"] = {name: {**one, **times} for name, one in figures["engines"].items()}
        cells.append({"adapters": count, "rank": rank, "targets": "all", **figures, **times})
    facts: dict[str, Any] = {"model": "m", "format": "int4-g64", "threads": 1, "seed": 0, "num_requests": 1}
    facts |= {"concurrency": 4, "zipf_alpha": 1.3, "include_base": False, "arrival": "closed", "lora_scale": 1.0}
    told = {"seconds_in_all": 1.0, "engine_details": {}, "measurements": cells}
    return results.record("zipf", told, warmup=1, iters=5, **facts)


def test_a_sweep_of_adapters_is_a_table_and_a_chart(tmp_path: Path, schema: Any) -> None:
    pytest.importorskip("plotly", reason=NO_PLOTLY)
    result, file, out = swept(), tmp_path / "zipf.json", tmp_path / "report.html"
    schema(result)
    results.write(file, result)
    assert main(["bench", "report", str(file), "-o", str(out)]) == 0
    text = out.read_text(encoding="utf-8")
    assert "infeng rank 8" in text and "llama_cpp rank 16" in text
    assert "Zipf 1.3, 4 at a time" in text
    assert "<td>2</td><td>16</td><td>llama_cpp</td><td>0.8</td><td>0.8 to 0.8</td>" in text
    assert "against llama_cpp" in text  # among the ratios of all files
    assert text.count("Plotly.newPlot(") == 2


def broken(path: Path, change: dict[str, Any]) -> None:
    data = json.loads(path.read_text())
    path.write_text(json.dumps({**data, **change}))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"schema": "infeng-bench/9"}, "has the form infeng-bench/9"),
        ({"schema": "other"}, "is no result of infeng bench"),
        ({"threads": 0}, "threads: 0 is less than the minimum of 1"),
        ({"ratios": {"llama_cpp": -1}}, "ratios.llama_cpp"),
        ({"ratio_low": None}, "ratio_low"),
    ],
)
def test_a_file_that_is_no_result_is_named(
    files: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, Any], text: str
) -> None:
    broken(files[0], change)
    out = tmp_path / "report.html"
    assert main(["bench", "report", str(files[0]), "-o", str(out)]) != 0
    told = capsys.readouterr().err
    assert str(files[0]) in told and text in told
    assert not out.exists()


def test_a_page_that_cannot_be_written_is_an_error(
    files: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("plotly", reason=NO_PLOTLY)
    assert main(["bench", "report", str(files[0]), "-o", str(tmp_path / "none" / "report.html")]) == 1
    assert "cannot be written" in capsys.readouterr().err
