"""A conversion is complete or absent after any interruption; two processes with the same task share one."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import termios
import textwrap
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from infeng_convert.atomic import locked
from infeng_convert.conversion import convert

from infeng_core.cli import main
from infeng_core.errors import InfengError, ModelError
from infeng_core.formats.artifacts.reader import read_native
from infeng_core.formats.format_choice import FormatChoice
from infeng_core.formats.quant import builtin_format

Maker = Callable[..., Path]
INT4 = FormatChoice("int4-g64", {"embed": "int8-row"})


def left_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def start(code: str, *arguments: object) -> subprocess.Popen[str]:
    """Run Python code in a process of its own, on the installed package."""
    command = [sys.executable, "-P", "-c", textwrap.dedent(code), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@dataclass
class Done:
    """What a command left: its exit status and what it printed."""

    status: int
    stdout: str
    stderr: str


@pytest.fixture
def infeng(capfd: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """The command line."""

    def run(*arguments: object) -> Done:
        try:
            status = main([str(argument) for argument in arguments])
        except SystemExit as end:  # argparse
            status = int(end.code or 0)
        return Done(status, *capfd.readouterr())

    return run


def test_waiting_for_other_writers_is_reported_once(tmp_path):
    from threading import Thread

    from infeng_convert.atomic import locked

    told: list[str] = []

    def write(name: str) -> None:
        with locked(tmp_path / "out", waiting=lambda: told.append(name)):
            time.sleep(0.05)

    writers = [Thread(target=write, args=(f"writer {number}",)) for number in range(6)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert len(told) == len(set(told)) >= 1


def test_the_same_conversion_again_is_reused_and_another_needs_force(make_model: Maker, tmp_path: Path) -> None:
    source, out = make_model(), tmp_path / "out"
    first = convert(source, out / "m", INT4)
    assert not first.reused and convert(source, out / "m", INT4).reused
    with pytest.raises(ModelError, match="exists already: give --force"):
        convert(source, out / "m", FormatChoice("f32"))
    replaced = convert(source, out / "m", FormatChoice("f32"), force=True)
    assert replaced.formats["embed"] == "f32" and replaced.id != first.id
    assert left_in(out) == {"m"}


def test_a_destination_that_is_not_ours_is_never_touched(make_model: Maker, tmp_path: Path) -> None:
    source, folder, file = make_model(), tmp_path / "folder", tmp_path / "file"
    folder.mkdir()
    (folder / "precious").write_text("x")
    file.write_text("x")
    for destination in (folder, file, source):
        with pytest.raises(ModelError, match="no engine-native directory"):
            convert(source, destination, INT4, force=True)
    assert left_in(folder) == {"precious"} and file.read_text() == "x" and (source / "model.safetensors").exists()


def spoil(folder: Path, way: str) -> None:
    """Make a converted directory into one that this program did not write as it is."""
    if way == "a file of the user's":
        (folder / "notes.txt").write_text("precious")
    elif way == "a folder of the user's":
        (folder / "precious").mkdir()
    elif way == "a file is missing":
        (folder / "config.json").unlink()
    elif way == "a link in a file's place":
        (folder / "config.json").rename(folder.parent / "config.json")
        (folder / "config.json").symlink_to("../config.json")
    elif way == "another program's manifest":
        (folder / "manifest.yaml").write_text("apiVersion: 1\nkind: Deployment\n")
    elif way == "an empty manifest":
        (folder / "manifest.yaml").write_text("")
    else:
        (folder / "manifest.yaml").write_text("infeng_weights: '1.0'\nid: x\nkey: y\nfiles: {../x: z}\nweights: [x]\n")


WAYS = [
    "a file of the user's",
    "a folder of the user's",
    "a file is missing",
    "a link in a file's place",
    "another program's manifest",
    "an empty manifest",
    "a manifest that lies",
]


@pytest.mark.parametrize("way", WAYS)
def test_force_replaces_only_directories_that_a_conversion_wrote(make_model: Maker, tmp_path: Path, way: str) -> None:
    out = convert(make_model(), tmp_path / "out", INT4).path
    spoil(out, way)
    before = {path.name: path.read_bytes() if path.is_file() else None for path in out.iterdir()}
    with pytest.raises(ModelError, match="exists and is no engine-native directory") as caught:
        convert(tmp_path / "model", out, FormatChoice("f32"), force=True)
    assert "choose another destination" in caught.value.remedy
    assert {path.name: path.read_bytes() if path.is_file() else None for path in out.iterdir()} == before


def test_force_replaces_a_damaged_directory_and_one_of_another_version(make_model: Maker, tmp_path: Path) -> None:
    source = make_model()
    out = convert(source, tmp_path / "out", INT4).path
    for old, new in (("infeng_weights: '1.0'", "infeng_weights: '0.3'"), ("\nid: ", "\nid: x")):
        text = (out / "manifest.yaml").read_text()
        (out / "manifest.yaml").write_text(text.replace(old, new))
        (out / "weights-00001.safetensors").write_bytes(b"")
        assert not convert(source, out, INT4, force=True).reused
        assert convert(source, out, INT4).reused


def test_a_destination_created_during_a_conversion_is_kept(
    make_model: Maker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from infeng_convert import conversion

    source, out = make_model(), tmp_path / "out"
    convert(source, out, INT4)
    write = conversion.write_shard

    def slow(*arguments: Any) -> Any:
        (out / "notes.txt").write_text("precious")
        return write(*arguments)

    monkeypatch.setattr(conversion, "write_shard", slow)
    with pytest.raises(ModelError, match=r"'notes\.txt' is not part of it"):
        convert(source, out, INT4, force=True)
    assert (out / "notes.txt").read_text() == "precious" and (out / "manifest.yaml").exists()


def test_a_link_is_not_followed_into_another_directory(make_model: Maker, tmp_path: Path) -> None:
    source = make_model()
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "precious").write_text("x")
    (tmp_path / "link").symlink_to("target")
    with pytest.raises(ModelError, match="no engine-native directory"):
        convert(source, tmp_path / "link", INT4, force=True)
    (tmp_path / ".out.lock").symlink_to("victim")
    with pytest.raises(Exception, match="cannot be written"):
        convert(source, tmp_path / "out", INT4)
    assert not (tmp_path / "victim").exists() and (tmp_path / "target" / "precious").exists()


@pytest.mark.parametrize("destination", ["/", "x" * 300, "nul\0", "x" * 5000])
def test_an_impossible_destination_is_an_error(make_model: Maker, tmp_path: Path, destination: str) -> None:
    with pytest.raises(InfengError):
        convert(make_model(), tmp_path / destination, INT4, force=True)


def test_a_directory_moved_aside_by_a_killed_process_is_restored(make_model: Maker, tmp_path: Path) -> None:
    bad = make_model(name="bad", change=lambda t: t["lm_head.weight"].__setitem__((49, 71), np.nan))
    out = convert(make_model(), tmp_path / "out" / "m", INT4).path
    out.rename(out.with_name(".m.infeng-old"))
    with pytest.raises(ModelError, match="holds nan"):
        convert(bad, out, INT4)
    assert left_in(tmp_path / "out") == {"m"} and convert(tmp_path / "model", out, INT4).reused


def test_converted_files_are_not_world_writable_under_an_open_umask(make_model: Maker, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        out = convert(make_model(), tmp_path / "out", INT4).path
    finally:
        os.umask(before)
    assert not any(path.stat().st_mode & 0o002 for path in (out, *out.iterdir()))


@pytest.mark.parametrize("change", ["cut", "written"])
def test_a_source_that_changes_under_a_conversion_is_an_error_and_no_signal(
    make_model: Maker, tmp_path: Path, change: str
) -> None:
    code = """
        import os, sys
        from pathlib import Path
        from infeng_convert import conversion, packer
        from infeng_core.errors import ModelError
        source, out, change = sys.argv[1:]
        pack = packer.pack_tensor
        def late(*arguments):
            if change == "cut":
                os.truncate(Path(source) / "model.safetensors", 5000)
            else:
                with open(Path(source) / "model.safetensors", "r+b") as file:
                    file.seek(-1, 2)
                    file.write(b"x")
                os.utime(Path(source) / "model.safetensors", ns=(1, 1))
            pack(*arguments)
        packer.pack_tensor = late
        try:
            conversion.convert(Path(source), Path(out), conversion.FormatChoice("f32"))
        except ModelError as error:
            print(error)
    """
    process = start(code, make_model(), tmp_path / "out" / "m", change)
    said, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert said.startswith(f"{tmp_path / 'model' / 'model.safetensors'}: ")
    assert ("bytes too early" if change == "cut" else "was changed while it was read") in said
    assert left_in(tmp_path / "out") == set()


def test_a_mapped_model_lives_on_when_its_directory_is_converted_anew(make_model: Maker, tmp_path: Path) -> None:
    source = make_model()
    out = convert(source, tmp_path / "out", INT4).path
    mapped = read_native(out, builtin_format, load="mmap")
    before = mapped.matrix("lm_head.weight")
    convert(source, out, FormatChoice("f32"), force=True)
    np.testing.assert_array_equal(mapped.matrix("lm_head.weight"), before)


SECRET = "root:secret"


@pytest.mark.parametrize("name", ["vocab.json", "tokenizer.json", "config.json", "chat_template.jinja"])
@pytest.mark.parametrize("way", ["absolute", "relative", "through a folder"])
def test_a_link_out_of_the_model_is_not_copied(make_model: Maker, tmp_path: Path, name: str, way: str) -> None:
    source = make_model()
    content = (source / name).read_text() if (source / name).exists() else SECRET
    (tmp_path / "secret").write_text(content)
    (source / name).unlink(missing_ok=True)
    (source / "folder").symlink_to("..")
    target = {"absolute": tmp_path / "secret", "relative": "../secret", "through a folder": "folder/secret"}[way]
    (source / name).symlink_to(target)
    with pytest.raises(ModelError, match=rf"{name}: is a link that leads out of the directory"):
        convert(source, tmp_path / "out", INT4)
    assert not (tmp_path / "out").exists()


def test_links_inside_the_model_are_followed(make_model: Maker, tmp_path: Path) -> None:
    source = make_model()
    (source / "files").mkdir()
    (source / "tokenizer.json").rename(source / "files" / "blob")
    (source / "tokenizer.json").symlink_to("files/blob")
    out = convert(source, tmp_path / "out", INT4).path
    assert (out / "tokenizer.json").read_bytes() == (source / "files" / "blob").read_bytes()
    assert not (out / "tokenizer.json").is_symlink()


def test_an_error_in_the_middle_leaves_nothing_and_keeps_the_old(make_model: Maker, tmp_path: Path) -> None:
    good = make_model()
    bad = make_model(name="bad", change=lambda t: t["lm_head.weight"].__setitem__((49, 71), np.nan))
    out = tmp_path / "out"
    for _ in range(2):
        with pytest.raises(ModelError, match=r"lm_head\.weight: holds nan at row 49, column 71"):
            convert(bad, out / "m", INT4, force=True)
        assert left_in(out) <= {"m"}
        kept = convert(good, out / "m", INT4)
    assert kept.reused and left_in(out) == {"m"}


@pytest.mark.parametrize("limit", [100, 20_000])
def test_a_full_disk_leaves_nothing(make_model: Maker, tmp_path: Path, limit: int) -> None:
    # A limit on the size of files makes write() fail in the same way at a chosen byte.
    process = start(
        """
        import resource, sys
        from infeng_core.cli import main
        source, out, limit = sys.argv[1:]
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), int(limit)))
        sys.exit(main(["convert", source, out]))
        """,
        make_model(),
        tmp_path / "out" / "m",
        limit,
    )
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert re.search(r"infeng: error: .*m: a file got too large, nothing was kept: free some space", err), err
    assert "Traceback" not in err and left_in(tmp_path / "out") == set()


def test_a_conversion_that_cannot_fit_is_refused_before_it_starts(
    make_model: Maker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)
    with pytest.raises(Exception, match=r"the conversion needs \d.* MB, the disk has 0\.0 MB free"):
        convert(make_model(), tmp_path / "out" / "m", INT4)
    assert left_in(tmp_path / "out") == set()


SLOW = """
    import signal, sys, time
    from pathlib import Path
    from infeng_convert import conversion
    from infeng_core.formats.quant import QuantFormat
    signal.signal(signal.SIGINT, signal.default_int_handler)
    pack = QuantFormat.pack
    def slow(self, source, out, **options):
        print("packing", flush=True)
        time.sleep(0.1)
        pack(self, source, out, **options)
    QuantFormat.pack = slow
    made = conversion.convert(Path(sys.argv[1]), Path(sys.argv[2]), conversion.FormatChoice("f32"))
    print("reused" if made.reused else "made", flush=True)
"""


def test_ctrl_c_leaves_nothing(make_model: Maker, tmp_path: Path) -> None:
    process = start(SLOW, make_model(), tmp_path / "out" / "m")
    assert process.stdout is not None and process.stdout.readline() == "packing\n"
    assert left_in(tmp_path / "out") == {".m.lock", ".m.infeng-partial"}
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode != 0 and "KeyboardInterrupt" in err
    assert left_in(tmp_path / "out") == set()


def test_leftovers_of_a_killed_process_are_removed_by_the_next(make_model: Maker, tmp_path: Path) -> None:
    source = make_model()
    process = start(SLOW, source, tmp_path / "out" / "m")
    assert process.stdout is not None and process.stdout.readline() == "packing\n"
    process.kill()
    process.wait(timeout=60)
    process.communicate()
    assert left_in(tmp_path / "out") == {".m.lock", ".m.infeng-partial"}
    assert not convert(source, tmp_path / "out" / "m", INT4).reused
    assert left_in(tmp_path / "out") == {"m"}


@pytest.mark.slow
def test_a_second_process_waits_and_uses_the_first_ones_result(make_model: Maker, tmp_path: Path) -> None:
    source, out = make_model(), tmp_path / "out" / "m"
    processes = [start(SLOW, source, out) for _ in range(3)]
    outputs = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], outputs
    said = [text for text, _ in outputs]
    assert sorted(text.splitlines()[-1] for text in said) == ["made", "reused", "reused"]
    assert sum("packing" in text for text in said) == 1
    assert sum("another process writes it; waiting" in err for _, err in outputs) >= 1
    assert left_in(out.parent) == {"m"}


def test_the_lock_admits_one_process_at_a_time(tmp_path: Path) -> None:
    log = tmp_path / "log"
    code = """
        import os, sys, time
        from pathlib import Path
        from infeng_convert.atomic import locked
        log = os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        for _ in range(20):
            with locked(Path(sys.argv[1])):
                os.write(log, b"in\\n")
                time.sleep(0.001)
                os.write(log, b"out\\n")
    """
    processes = [start(code, tmp_path / "m", log) for _ in range(3)]
    assert [process.communicate(timeout=60)[1] for process in processes] == [""] * 3
    assert log.read_text().split() == ["in", "out"] * 60
    assert left_in(tmp_path) == {"log"} | ({"cache"} & left_in(tmp_path))


def test_the_lock_is_released_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="inside"), locked(tmp_path / "m"):
        raise ValueError("inside")
    seen: list[bool] = []

    def take() -> None:
        with locked(tmp_path / "m"):
            seen.append((tmp_path / ".m.lock").exists())

    taker = threading.Thread(target=take, daemon=True)
    taker.start()
    taker.join(30)
    assert seen == [True] and not (tmp_path / ".m.lock").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_place_that_cannot_be_written_is_an_error(make_model: Maker, tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    with pytest.raises(Exception, match="cannot be written"):
        convert(make_model(), closed / "m", INT4)


def test_a_parent_that_is_a_file_is_an_error(make_model: Maker, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(Exception, match=r"cannot be written \(.*\): check the path"):
        convert(make_model(), tmp_path / "file" / "m", INT4)


def test_the_command_converts_and_reports_as_json(
    make_model: Maker, tmp_path: Path, infeng: Callable[..., Done]
) -> None:
    source, out = make_model(), tmp_path / "out"
    done = infeng("convert", source, out, "--format", "bf16", "--set", "model.formats.lm_head=int8-row", "--json")
    assert done.status == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["path"] == str(out) and not report["reused"] and report["nbytes"] > 0
    assert (report["formats"]["embed"], report["formats"]["lm_head"]) == ("bf16", "int8-row")
    assert done.stderr == ""  # a progress bar is for terminals
    again = infeng("convert", source, out)
    assert again.status == 1 and "--force" in again.stderr and "Traceback" not in again.stderr
    assert infeng("convert", source, out, "--force").stdout.startswith(f"{out}: 0.")


def test_on_a_terminal_there_is_a_progress_bar(make_model: Maker, tmp_path: Path) -> None:
    terminal, inner = pty.openpty()
    termios.tcsetwinsize(inner, (24, 80))
    command = [sys.executable, "-P", "-c", "import sys; from infeng_core.cli import main; sys.exit(main())"]
    command += ["convert", str(make_model()), str(tmp_path / "out")]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=inner, text=True, check=True, timeout=60)
    os.close(inner)
    shown = os.read(terminal, 1 << 16).decode()
    os.close(terminal)
    assert "converting: 100%" in shown and "converting" not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (["absent", "out"], 2, "no such model directory"),
        (["model", "out", "--format", "int5"], 1, "int5"),
        (["model", "out", "--set", "model.formats.embd=f32"], 2, "fits no tensor"),
        (["model"], 2, "DEST"),
    ],
)
def test_wrong_use_of_the_command_has_a_status_and_a_reason(
    make_model: Maker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    infeng: Callable[..., Done],
    arguments: list[str],
    status: int,
    text: str,
) -> None:
    make_model()
    monkeypatch.chdir(tmp_path)
    done = infeng("convert", *arguments)
    assert done.status == status and text in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_memory_stays_near_one_tensor(tmp_path: Path, write_model: Maker) -> None:
    sizes = {"hidden_size": 1024, "intermediate_size": 2816, "num_attention_heads": 16, "num_key_value_heads": 16}
    source = write_model(tmp_path / "model", **sizes, head_dim=64, num_hidden_layers=16, vocab_size=8000)
    process = start(
        """
        import resource, sys
        from pathlib import Path
        from infeng_convert import conversion
        from infeng_core import _native
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        conversion.convert(Path(sys.argv[1]), Path(sys.argv[2]), conversion.FormatChoice("f32"))
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
        """,
        source,
        tmp_path / "out",
    )
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    file = (source / "model.safetensors").stat().st_size
    largest = 8000 * 1024 * 4
    # The packed tensor and its source; twice that leaves room for what Python takes, and is far below the file.
    assert int(out) * 1024 < 4 * largest < file / 4
