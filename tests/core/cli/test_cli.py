"""The command line around the plugin system."""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import tiny_model
import yaml

from infeng_core import cli
from infeng_core.machine.cpu import detect
from infeng_core.plug.manager import Plugins
from infeng_core.settings.config import OPS, SCHEMA

INFENG = str(Path(sys.executable).parent / "infeng")


@pytest.fixture
def cache(tmp_path):
    """A cache of the test's own."""
    return tmp_path / "cache"


@pytest.fixture
def infeng(capsys):
    """Run a command in this process; returns (status, stdout, stderr)."""

    def run(*words: str) -> tuple[int, str, str]:
        try:
            status = cli.main(list(words))
        except SystemExit as end:
            status = int(end.code or 0)
        out, err = capsys.readouterr()
        return status, out, err

    return run


def test_version(infeng):
    assert infeng("--version") == (0, f"infeng {version('infeng-core')}\n", "")


def test_version_works_whatever_is_installed(infeng, monkeypatch):
    monkeypatch.setenv("INFENG_THREADS_COUNT", "many")
    assert infeng("--version")[0] == 0
    status, _, err = infeng("doctor")
    assert (status, err) == (
        2,
        "infeng: error: environment variable INFENG_THREADS_COUNT: expected a whole number, found 'many' "
        "(or the word auto)\n",
    )


def test_help_lists_every_command_and_imports_none():
    code = (
        "import sys; from infeng_core.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "print([m for m in ('infeng_doctor', 'infeng_core.engine', 'infeng_demo', 'numpy', 'tokenizers')"
        " if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    for name in ("doctor", "plugins", "convert"):
        assert re.search(rf"^    {name} ", done.stdout, re.MULTILINE)
    assert done.stdout.splitlines()[-1] == "[]"


def test_commands_without_computation_do_not_import_the_engine():
    """The help of every command, and lists of what is installed."""
    code = (
        "import sys; from infeng_core.cli import main\n"
        "for words in sys.argv[1:]:\n"
        "    try: main(words.split())\n"
        "    except SystemExit: pass\n"
        "    heavy = [m for m in ('numpy', 'tokenizers', 'safetensors', 'structlog') if m in sys.modules]\n"
        "    print('imported:', words, heavy)"
    )
    commands = ["convert", "convert-adapter", "models", "doctor", "plugins", "run"]
    words = [*(f"{name} --help" for name in commands), "plugins list", "plugins info core"]
    done = subprocess.run([sys.executable, "-P", "-c", code, *words], capture_output=True, text=True, check=True)
    said = [line for line in done.stdout.splitlines() if line.startswith("imported:")]
    assert said == [f"imported: {one} []" for one in words]


def test_an_unknown_command_is_a_usage_error(infeng):
    status, _, err = infeng("docter")
    assert status == 2
    assert "invalid choice: 'docter'" in err


def test_a_command_of_a_plugin_runs_and_its_errors_are_printed(infeng, tmp_path, monkeypatch):
    (tmp_path / "loud_hooks.py").write_text("""
from infeng_core.errors import ModelError
from infeng_core.plug.markers import hookimpl
class Loud:
    name = "loud"
    help = "100% loud"
    def configure(self, parser): parser.add_argument("what")
    def run(self, arguments):
        if arguments.what == "error": raise ModelError("a thing", "it broke", "mend it")
        if arguments.what == "stop": raise KeyboardInterrupt
        print(arguments.what.upper()); return 5
@hookimpl
def infeng_commands(): return [Loud()]
""")
    path = tmp_path / "plugin.yaml"
    path.write_text(
        "infeng_plugin: 1\nname: loud\nversion: 1\npython: loud_hooks\n"
        'provides: {commands: [{name: loud, help: "100% loud"}]}\n'
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("INFENG_PLUGINS_PATHS", str(path))
    assert "100% loud" in infeng("--help")[1]
    assert infeng("loud", "hello") == (5, "HELLO\n", "")
    assert infeng("loud", "error") == (1, "", "infeng: error: a thing: it broke: mend it\n")
    assert infeng("loud", "stop")[0] == 130


@pytest.mark.parametrize("name", ["aaa", "zzz"])
def test_a_command_of_this_project_wins_over_another_of_its_name_whose_plugin_sorts_before(
    infeng, tmp_path, monkeypatch, name
):
    (tmp_path / f"{name}_hooks.py").write_text(f"""
from infeng_core.plug.markers import hookimpl
class Mine:
    help = "of {name}"
    def __init__(self, name): self.name = name
    def configure(self, parser): pass
    def run(self, arguments): print("{name}"); return 0
@hookimpl
def infeng_commands(): return [Mine("run"), Mine("mine")]
""")
    rows = ", ".join(f"{{name: {command}, help: of {name}}}" for command in ("run", "mine"))
    head = f"infeng_plugin: 1\nname: {name}\nversion: 1\npython: {name}_hooks\n"
    (tmp_path / "plugin.yaml").write_text(f"{head}provides: {{commands: [{rows}]}}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("INFENG_PLUGINS_PATHS", str(tmp_path / "plugin.yaml"))
    assert "complete a prompt with a model" in infeng("--help")[1]
    assert "--logit-processor" in infeng("run", "--help")[1]
    assert infeng("mine") == (0, f"{name}\n", "")
    monkeypatch.setenv("INFENG_PLUGINS_DISABLE", "run")  # a command that the project does not bring here is free
    assert infeng("run") == (0, f"{name}\n", "")


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", ["--help", "--version", "run --help"])
def test_a_help_that_cannot_be_written_is_an_error(words, unbuffered):
    command = f"PYTHONUNBUFFERED={unbuffered} {INFENG} {words} > /dev/full"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    error = "infeng: error: the system: No space left on device: free some space, or write elsewhere\n"
    assert (done.returncode, done.stderr) == (1, error)


def test_a_reader_that_goes_away_is_no_error(tmp_path):
    command = f"{INFENG} doctor; echo status $? >&2"
    done = subprocess.run(["bash", "-c", f"({command}) | true"], capture_output=True, text=True, check=True)
    assert done.stderr == "status 0\n"


def test_doctor_reports_machine_plugins_settings_and_cache(infeng, monkeypatch, tmp_path):
    monkeypatch.setenv("INFENG_CPU_FEATURES", "-avx512_vnni,-sve")
    monkeypatch.setenv("INFENG_KV_CACHE_DTYPE", "f32")
    status, out, err = infeng("doctor", "--json", "--set", "threads.count=1")
    facts = json.loads(out)
    assert (status, err) == (0, "")
    cpu = detect({})
    machine = facts["machine"]
    assert machine["model"] == cpu.model
    assert set(machine["features"]) == cpu.features - {"avx512_vnni", "sve"}
    if "avx512_vnni" in cpu.features:
        assert machine["masked"]["avx512_vnni"] == "masked by INFENG_CPU_FEATURES"
    assert machine["cores"] == cpu.cores == machine["topology"]["allowed"]
    assert facts["workers"]["count"] == 1
    assert 0 < facts["workers"]["barrier_us"]["median"] <= facts["workers"]["barrier_us"]["p99"]
    assert "model" not in facts
    assert machine["memory"]["total"] >= machine["memory"]["available"] > 1 << 20
    assert facts["settings"].keys() == {f"{s}.{k}" for s, keys in SCHEMA.items() for k in keys}
    assert facts["settings"]["kv_cache.dtype"] == {"value": "f32", "from": "INFENG_KV_CACHE_DTYPE"}
    assert facts["settings"]["threads.count"] == {"value": 1, "from": "argument"}
    assert facts["settings"]["scheduler.use"]["from"] == "default"
    assert facts["cache"] == {"path": str(tmp_path / "cache"), "bytes": facts["cache"]["bytes"], "writable": True}
    assert facts["plugins"][0]["name"] == "core"
    reference = next(item for item in facts["libraries"] if item["name"] == "reference")
    assert reference["mapped"] and re.fullmatch("[0-9a-f]{64}", reference["sha256"])


def test_doctor_prints_the_same_facts_as_text(infeng, workshop, monkeypatch):
    bad = workshop.plugin("culprit", ON_LOAD="abort()")
    monkeypatch.setenv("INFENG_PLUGINS_PATHS", str(bad))
    status, out, _ = infeng("doctor", "--manifest", "portable")
    assert status == 0
    for pattern in (
        r"^processor +\S",
        r"^cores +\d+",
        r"^workers +\d+, (not )?pinned; a barrier takes \d+\.\d us, in 99 of 100 cases at most \d+\.\d us$",
        r"^numa +(unknown|\d+ nodes? ?.*)",
        r"^features .*",
        r"^huge pages  transparent \w+",
        r"^  culprit +1 kernels +not_in_order",  # portable allows the reference only: not even tried
        r"^  kernels\.order +\[\"reference\"\] +.*portable\.yaml:\d+$",
        r"^  threads\.count +auto +default$",
    ):
        assert re.search(pattern, out, re.MULTILINE), pattern
    out = infeng("doctor")[1]
    assert re.search(r"^  culprit +1 kernels +crashed +killed its process \(SIGABRT\)", out, re.MULTILINE)


@pytest.mark.slow
def test_doctor_loads_a_model_and_shows_where_its_memory_lies(infeng, tmp_path):
    model = tiny_model.write(tmp_path / "tiny")
    status, out, _ = infeng("doctor", "--model", str(model), "--json", "--set", "threads.count=1")
    assert status == 0
    facts = json.loads(out)["model"]
    assert facts["path"] == str(model)
    assert 0 < facts["load_s"] < 60
    assert facts["kv_bytes"] > 0
    assert facts["scratch_bytes"] > 0
    assert 0 < facts["context"] <= facts["kv_tokens"]
    if facts["huge_pages"] is not None:
        assert 0 <= facts["huge_pages"]["huge"] <= facts["huge_pages"]["resident"]
        assert facts["huge_pages"]["resident"] >= facts["scratch_bytes"] // 2
        assert facts["peak_rss_bytes"] >= facts["huge_pages"]["resident"]
    one = ("--set", "model.format=int4-g32", "--set", "model.formats.layers.1.down_proj=f32")
    status, out, _ = infeng("doctor", "--model", str(model), "--set", "threads.count=1", *one)
    for line in (
        r"int8-row +embed",
        r"int4-g32 +.*layers\.\*\.qkv_proj.*layers\.0\.down_proj",
        r"f32 +layers\.1\.down_proj",
    ):
        assert re.search(rf"^  {line}", out, re.MULTILINE), line
    assert re.search(
        r"^  takes +weights .*, cache .* for \d+ tokens of [\d.]+ KiB each, .*; context \d+ tokens$", out, re.MULTILINE
    )
    assert re.search(rf"^model +{re.escape(str(model))}: loaded in [\d.]+ s", out, re.MULTILINE)
    status, _, err = infeng("doctor", "--model", str(tmp_path / "none"))
    assert status == 2
    assert "none" in err


def test_list_shows_every_plugin_and_why_one_is_not_used(infeng, workshop, monkeypatch):
    path = workshop.plugin("picky", features=["sve" if detect({}).arch == "x86_64" else "avx2"])
    monkeypatch.setenv("INFENG_PLUGINS_PATHS", str(path))
    status, out, _ = infeng("plugins", "list")
    assert status == 0
    assert re.search(r"^  core +\S+ +ready .*built in$", out, re.MULTILINE)
    assert re.search(r"^  picky +1\.0 +missing_features +1 kernel +plugins\.paths$", out, re.MULTILINE)
    assert re.search(r"^picky: needs \w+, which is not in this processor$", out, re.MULTILINE)
    facts = {item["name"]: item for item in json.loads(infeng("plugins", "list", "--json")[1])}
    assert facts["picky"]["state"] == "missing_features"
    assert facts["picky"]["provides"] == {"kernels": ["embed_tiny"]}


def test_list_does_not_call_a_plugin_ready_whose_abi_is_refused(infeng, workshop, monkeypatch):
    monkeypatch.setenv("INFENG_PLUGINS_PATHS", str(workshop.plugin("elder", abi="7.3")))
    facts = {item["name"]: item for item in json.loads(infeng("plugins", "list", "--json")[1])}
    assert facts["elder"]["state"] == "abi_mismatch"
    assert "built for ABI 7.3" in facts["elder"]["reason"]


def test_info_shows_one_plugin_without_loading_it(infeng, workshop, monkeypatch):
    path = workshop.plugin("first", ON_LOAD="abort()")
    monkeypatch.setenv("INFENG_PLUGINS_PATHS", str(path))
    status, out, err = infeng("plugins", "info", "first")
    assert (status, err) == (0, "")
    for pattern in (
        r"^name +first$",
        r"^library +abi 0\.11$",
        r"^library +sha256 [0-9a-f]{64}$",
        r"^  embed_tiny +embed$",
    ):
        assert re.search(pattern, out, re.MULTILINE), pattern
    assert json.loads(infeng("plugins", "info", "first", "--json")[1])["library"]["abi"] == "0.11"
    status, _, err = infeng("plugins", "info", "frist")
    assert (status, err) == (1, "infeng: error: plugin frist: not installed: did you mean `first`?\n")


def test_texts_of_a_plugin_are_escaped(infeng, workshop, monkeypatch, tmp_path):
    text = (
        'infeng_plugin: 1\nname: sly\nversion: "1\\n\\e[2J"\n'
        'description: "x\\ninfeng: error: forged\\e[2J\\u202e"\n'
        'provides: {commands: [{name: sly, help: "y\\ninfeng: error: forged\\e[2J"}]}\n'
    )
    monkeypatch.setenv("INFENG_PLUGINS_PATHS", str(workshop.plugin("sly", yaml_text=text)))
    for words in (("plugins", "list"), ("plugins", "info", "sly"), ("--help",), ("doctor",)):
        status, out, err = infeng(*words)
        assert status == 0
        assert "forged" in out or words[-1] in ("list", "doctor")
        assert not any(line.startswith("infeng: error") for line in (out + err).splitlines())
        assert (out + err).replace("\n", "").isprintable()


@pytest.mark.slow
def test_why_explains_every_candidate(infeng, workshop, monkeypatch):
    good, gated = workshop.plugin("first"), workshop.plugin("gated", features=["sve", "avx2"])
    monkeypatch.setenv("INFENG_PLUGINS_PATHS", f"{good},{gated}")
    words = ("--set", "kernels.order=first,*,reference", "--set", "model.format=f32", "--set", "model.formats=")
    status, out, err = infeng("plugins", "why", "embed", *words)
    assert (status, err) == (0, "")
    assert out.startswith("embed f32, rows 1 and 2-8 and 9-64 and 65-512, n 32000, k 2048\n")
    assert re.search(r"^  >  first/embed_tiny +chosen +first in kernels\.order$", out, re.MULTILINE)
    assert re.search(r"^     reference/embed_f32 +outranked +first/embed_tiny ranks higher$", out, re.MULTILINE)
    assert re.search(r"^     gated/embed_tiny +missing_features +needs ", out, re.MULTILINE)
    facts = json.loads(infeng("plugins", "why", "embed", *words, "--json")[1])
    assert [item["problem"]["rows"] for item in facts] == [[1, 1], [2, 8], [9, 64], [65, 512]]
    assert {item["chosen"] for item in facts} == {"first/embed_tiny"}


def test_why_tells_that_adapters_of_an_embedding_are_an_op_of_their_own(infeng):
    words = (
        "plugins",
        "why",
        "embed",
        "--manifest",
        "portable",
        "--set",
        "model.format=f32",
        "--set",
        "model.formats=",
    )
    status, out, _ = infeng(*words)
    assert status == 0
    left = r"leaves lora to an op of their own: reference/embed_f32: cannot take lora into itself$"
    assert re.search(rf"^    embed f32 32000x2048: takes none\n +{left}", out, re.MULTILINE)
    assert "steps behind it" not in infeng(*words, "--set", "adapters.max_resident=0")[1]


OF_OTHERS = ("route", "combine", "layernorm")


@pytest.mark.parametrize("op", OF_OTHERS)
def test_why_says_that_a_model_has_no_such_operation(infeng, op):
    status, out, _ = infeng("plugins", "why", op, "--manifest", "portable")
    assert (status, out.strip()) == (0, f"this model has no {op}; --model names another one")


@pytest.mark.parametrize("op", [op for op in OPS if op not in OF_OTHERS])
def test_why_accepts_every_operation(infeng, op):
    facts = json.loads(infeng("plugins", "why", op, "--json", "--manifest", "portable")[1])
    assert facts
    for item in facts:
        assert item["problem"]["op"] == op
        assert item["chosen"].startswith("reference/")


@pytest.mark.slow
def test_why_uses_the_sizes_of_a_model(infeng, tmp_path):
    infeng_demo = pytest.importorskip("infeng_demo", reason="the demo wheel is not installed")
    config = json.loads((infeng_demo.model_dir() / "config.json").read_text())
    model = str(infeng_demo.model_dir())
    facts = json.loads(infeng("plugins", "why", "embed", "--model", model, "--json")[1])
    assert facts[0]["problem"]["k"] == config["hidden_size"]
    assert infeng("convert", model, str(tmp_path / "native"), "--format", "f32")[0] == 0
    facts = json.loads(infeng("plugins", "why", "linear", "--model", str(tmp_path / "native"), "--json")[1])
    assert {item["problem"]["weight"] for item in facts} == {"f32"}


def test_why_refuses_an_unknown_operation(infeng):
    status, _, err = infeng("plugins", "why", "liner")
    assert (status, err) == (2, "infeng: error: operation liner: unknown: did you mean `linear`?\n")


def test_lock_needs_a_model(infeng):
    status, _, err = infeng("plugins", "lock")
    assert status == 2
    assert "name one, or set model.path in the manifest" in err


def test_lock_writes_the_bound_kernels(infeng, tmp_path):
    infeng_demo = pytest.importorskip("infeng_demo", reason="the demo wheel is not installed")
    output = tmp_path / "manifest.lock"
    status, out, _ = infeng(
        "plugins", "lock", str(infeng_demo.model_dir()), "--manifest", "portable", "-o", str(output)
    )
    assert status == 0 and str(output) in out
    lock = yaml.safe_load(output.read_text())
    assert lock["libraries"].keys() == {"reference"}
    assert {kind.split()[0].rstrip(",") for kind in lock["kernels"]} >= {"embed", "linear", "attention", "rope"}
    assert sorted(tmp_path.glob("manifest.lock*")) == [output]


def test_strict_makes_a_broken_plugin_an_error(infeng, workshop, monkeypatch):
    monkeypatch.setenv("INFENG_PLUGINS_PATHS", str(workshop.plugin("culprit", ON_LOAD="abort()")))
    status, _, err = infeng("doctor", "--strict")
    assert status == 1
    assert "infeng: error: plugin culprit: killed its process (SIGABRT)" in err


def test_every_command_has_a_help_text():
    plugins = Plugins.discover()
    assert "run" in plugins.commands()
    for name in plugins.commands():
        command, parser = plugins.command(name), argparse.ArgumentParser()
        command.configure(parser)
        assert command.help and not command.help.endswith(".")
