"""The page that a report writes: every result is in it, and it needs nothing else."""

import html
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from infeng_bench.engine.work import Work
from infeng_bench.reports import results
from infeng_bench.stats.contention import Waits
from infeng_peers import comparison
from infeng_peers.comparison import Round
from infeng_report import sentences
from report_parts import COMMON, TOLD, ceilings, compared, compared_over_rows_and_context, compared_twice, gemms, swept

from infeng_core.cli import main


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    made = {"one.json": compared(), "two.json": compared_twice(), "gemm.json": gemms(), "roofline.json": ceilings()}
    for name, result in made.items():
        results.write(tmp_path / name, result)
    return [tmp_path / name for name in made]


def test_the_page_holds_every_result_and_needs_no_network(files: list[Path], tmp_path: Path) -> None:
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
    assert text.count("Plotly.newPlot(") == 5  # ratios, rates of one, decode and prefill of the other, the roofline
    assert text.index("class='lead'") < text.index("Plotly.newPlot(") < text.index("<table>")  # a sentence, a chart
    lead = re.search(r"<p class='lead'>(.*?)</p>", text)
    assert lead is not None and lead[1].startswith("infeng is 2.62 times as fast as openvino (at least 2.50)")


def test_the_table_shows_ratio_and_bound(files: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    assert main(["bench", "report", str(files[0]), "-o", str(out)]) == 0
    row = next(
        row
        for row in re.findall(r"<tr>(.*?)</tr>", out.read_text())
        if "<td>llama_cpp</td><td>10.0 tokens/s</td>" in row
    )
    cells = re.findall(r"<td>(.*?)</td>", row)
    assert "5.25 x" in cells  # the median of 5.0 ... 5.5
    assert "5.00 x" in cells  # the smallest of six: the lower bound


def test_rows_and_contexts_have_a_chart_each(tmp_path: Path, schema: Any) -> None:
    result, file, out = compared_over_rows_and_context(), tmp_path / "sweep.json", tmp_path / "report.html"
    schema(result)
    results.write(file, result)
    assert main(["bench", "report", str(file), "-o", str(out)]) == 0
    text = out.read_text(encoding="utf-8").replace("\\u002f", "/")
    assert "decode: tokens/s over rows" in text and "decode: tokens/s over context" in text
    assert "infeng, context 512" in text and "llama_cpp, rows 1" in text
    assert text.count("Plotly.newPlot(") == 4  # ratios, rates, rows, contexts


def test_a_sweep_of_adapters_is_a_table_and_a_chart(tmp_path: Path, schema: Any) -> None:
    result, file, out = swept(), tmp_path / "zipf.json", tmp_path / "report.html"
    schema(result)
    results.write(file, result)
    assert main(["bench", "report", str(file), "-o", str(out)]) == 0
    text = out.read_text(encoding="utf-8")
    assert "infeng rank 8" in text and "llama_cpp rank 16" in text
    assert "Zipf 1.3, 4 at a time" in text
    row = "<td>2</td><td>16</td><td>llama_cpp</td><td>0.800 tokens/s</td><td>0.800 tokens/s to 0.800 tokens/s</td>"
    assert row in text
    assert "against llama_cpp" in text  # among the ratios of all files
    assert text.count("Plotly.newPlot(") == 3  # ratios, tokens/s, latencies


KINDS = {
    "decode": ["--context", "8"],
    "prefill": ["--rows", "1,2", "--context", "8"],
    "lora-tax": ["--adapters", "1", "--rank", "2", "--context", "8", "--steps", "2"],
    "swap": ["--rows", "1", "--context", "8", "--rank", "2"],
    "pace": ["--rows", "1", "--prompt", "64"],
    "prefix": ["--prompt", "64"],
    "throughput": ["--requests", "3", "--input-len", "8", "--output-len", "4"],
    "gemm": ["--rows", "1", "--roofline", "none"],
}


@pytest.mark.slow
@pytest.mark.parametrize("verb", KINDS)
def test_every_kind_begins_with_a_sentence_and_folds_its_tables(verb: str, tiny_config: Path, tmp_path: Path) -> None:
    out, file = tmp_path / "report.html", tmp_path / "result.json"
    pairs = [] if verb == "throughput" else ["--pairs", "2"]
    call = ["bench", verb, *KINDS[verb], "--synthetic", str(tiny_config), "-t", "1", *pairs, "--json", str(file)]
    assert main([*call, "-o", str(out)]) == 0
    result, text = json.loads(file.read_text()), out.read_text(encoding="utf-8")
    lead = re.search(r"<p class='lead'>(.*?)</p>", text)
    assert lead is not None and lead[1].endswith(".") and re.search(r"\d", lead[1])
    assert html.unescape(lead[1]) != f"{sentences.title(result)}."
    tables = [match.start() for match in re.finditer("<table>", text)]
    folds = [(match.start(), match.end()) for match in re.finditer(r"<details>.*?</details>", text, re.DOTALL)]
    assert tables and all(any(begin < place < end for begin, end in folds) for place in tables)
    assert text.count("<table>") == text.count("<div class='scroll'><table>")  # none is clipped
    shown = re.sub(r"<(script|pre|style)>.*?</\1>", "", text, flags=re.DOTALL)
    cells = re.findall(r"<td[^>]*>(.*?)</td>", shown)
    assert not [cell for cell in cells if re.search(r"\d[eE][+]\d|\.\d{5}", cell)]  # no 1.31e+04, no 0.49012345
    assert ("Processor by core" in text) == bool(result.get("core_use"))


def test_a_report_is_written_beside_the_json(tiny_config: Path, tmp_path: Path) -> None:
    out, page = tmp_path / "out.json", tmp_path / "page.html"
    sizes = ("--rows", "1", "--context", "16", "--steps", "2", "--pairs", "1", "--roofline", "none", "-t", "1")
    assert main(["bench", "decode", str(tiny_config), *sizes, "--json", str(out), "-o", str(page)]) == 0
    assert json.loads(out.read_text())["measurements"][0]["work"] in page.read_text()


def test_a_measurement_runs_before_the_library_of_charts_is_loaded(tiny_config: Path, tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "from infeng_bench.verbs import timed_works\n"
        "from infeng_core.cli import main\n"
        "timed_works.run = lambda arguments: print('plotly' in sys.modules, 'infeng_report' in sys.modules) or 0\n"
        f"sys.exit(main(['bench', 'decode', {str(tiny_config)!r}, '-o', {str(tmp_path / 'page.html')!r}]))\n"
    )
    ended = subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout.split()) == (0, ["False", "True"]), ended.stderr


def test_a_report_says_why_it_shows_no_ratio(tmp_path: Path) -> None:
    for name, waits in (("busy", Waits(ran=0.66, waited=0.34)), ("quiet", Waits(ran=0.99, waited=0.01))):
        told = {"infeng": Waits(ran=0.99, waited=0.01), "peer": waits}
        rounds = [Round({"infeng": 50.0, "peer": 10.0}, {"infeng": 1.0, "peer": 1.0}, told)] * 5
        one = comparison.compared(Work("decode"), rounds, {"infeng": {}, "peer": {}}, None)
        work = one.pop("work")
        results.write(tmp_path / f"{name}.json", results.record("compare", {**TOLD, **one}, work=work, **COMMON))
        out = tmp_path / f"{name}.html"
        assert main(["bench", "report", str(tmp_path / f"{name}.json"), "-o", str(out)]) == 0
        text = out.read_text()
        assert ("withheld: peer&#x27;s threads waited 34%" in text) == (name == "busy")
        assert ("against peer" in text) == (name == "quiet")


def test_a_result_without_its_usual_figures_still_has_a_sentence() -> None:
    for kind in sentences.SENTENCES:
        assert sentences.headline({"kind": kind, "model": "m", "threads": 2}) == f"{kind} m, 2 threads."
    assert sentences.headline({"kind": "none of these", "model": "<b>"}) == "none of these <b>."


def broken(path: Path, change: dict[str, Any]) -> None:
    data = json.loads(path.read_text())
    path.write_text(json.dumps({**data, **change}))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"schema": "infeng-bench/9"}, "has the form infeng-bench/9"),
        ({"schema": "other"}, "is not a result of infeng bench"),
        ({"threads": 0}, "threads: 0 is less than the minimum of 1"),
        ({"ratios": {"llama_cpp": -1}}, "ratios.llama_cpp"),
        ({"ratio_low": None}, "ratio_low"),
    ],
)
def test_a_file_without_a_result_is_named(
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
    assert main(["bench", "report", str(files[0]), "-o", str(tmp_path / "none" / "report.html")]) == 2
    assert "its folder is not there" in capsys.readouterr().err
