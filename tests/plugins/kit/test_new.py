"""What `infeng plugins new` writes, and what it refuses."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import infeng_abi
import pytest
from infeng_kit.kinds import KINDS
from infeng_kit.naming import MOST, Names, names_of
from infeng_kit.rust import assertions, bindings, module
from infeng_kit.templates import rendered, write
from kit_parts import WORDS, environ, has_rust, infeng

from infeng_core import cli
from infeng_core.errors import UsageError
from infeng_core.plug.manager import Plugins
from infeng_core.plug.plugin import read_plugin

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"
HEADER = infeng_abi.include_dir() / "infeng" / "abi.h"
SOURCES = {
    "kernel-c": ("kernel", "example", ("rmsnorm.c",)),
    "kernel-cpp": ("kernel", "example", ("rope.cc",)),
    "format": ("format", "int5", ("infeng_int5/__init__.py", "infeng_int5/plugin.yaml", "meson.build", "int5.c")),
    "op": ("op", "clip", ("infeng_clip/__init__.py", "infeng_clip/plugin.yaml", "meson.build", "clip.c")),
    **{
        kind: (folder, name, (f"infeng_{name}/__init__.py", f"infeng_{name}/plugin.yaml"))
        for kind, folder, name in (
            ("family", "family", "renamed"),
            ("tokenizer", "tokenizer", "bytes"),
            ("policy", "scheduler", "shortest"),
            ("processor", "logits", "choice"),
            ("backend", "backend", "bigram"),
            ("command", "command", "count"),
            ("observer", "observer", "lines"),
            ("route", "route", "length"),
        )
    },
}
"""By kind: the folder of docs/examples, the name with which the template becomes it, and the files that are equal."""


@pytest.mark.parametrize("kind", SOURCES)
def test_a_template_with_the_example_s_name_is_the_example(kind: str) -> None:
    folder, name, files = SOURCES[kind]
    made = rendered(kind, Names(name))
    for file in files:
        expected = (EXAMPLES / folder / file).read_text()
        if kind == "format":  # whose kernel has a name of its own
            expected = expected.replace("linear_int5g32", "linear_int5_g32")
        assert made[file] == expected, file


def test_every_kind_but_rust_has_an_example_and_a_name_here() -> None:
    assert SOURCES.keys() == KINDS.keys() - {"kernel-rust"}
    assert WORDS.keys() == KINDS.keys()


@pytest.mark.parametrize("kind", KINDS)
def test_a_project_has_a_valid_plugin_yaml_a_test_and_a_page_with_three_commands(kind: str, tmp_path: Path) -> None:
    names = Names(WORDS[kind])
    write(rendered(kind, names), tmp_path / "project")
    assert read_plugin(tmp_path / "project" / names.module / "plugin.yaml").name == names.name
    page = (tmp_path / "project" / "README.md").read_text()
    [block] = re.findall(r"```\n(.*?)```", page, re.DOTALL)
    assert len(block.splitlines()) == 3
    assert "@" not in "".join(path.read_text() for path in (tmp_path / "project" / names.module).glob("*.yaml"))
    assert (tmp_path / "project" / "tests" / f"test_{names.ident}.py").is_file()


@pytest.mark.parametrize(
    "name",
    ["", "../x", "/tmp/x", "a/b", "A", "my norm", "-x", "x-", "x--y", "1x", "ünder", "x\n", "class", "infeng-x",
     "infeng", "x" * (MOST + 1), "core", "kernels", "run", "avx2", "llama", "kit", "x.y", "@NAME@"],
)  # fmt: skip
def test_a_name_that_is_none_or_in_use_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with_name = ["plugins", "new", "--kind", "tokenizer", "--dir", "made", "--", name]
    assert cli.main(with_name) == 2
    assert capsys.readouterr().err.startswith("infeng: error: name ")
    assert not list(tmp_path.iterdir())


def test_names_have_the_forms_of_each_language() -> None:
    names = names_of("my-fine_norm", ())
    assert (names.ident, names.module, names.distribution) == (
        "my_fine_norm",
        "infeng_my_fine_norm",
        "infeng-my-fine-norm",
    )
    assert names.class_name == "MyFineNorm"


def test_nothing_is_overwritten_and_no_link_is_followed(tmp_path: Path) -> None:
    files = rendered("policy", Names("x"))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "README.md").write_text("mine")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "file").write_text("mine")
    for name, words in (("full", "not empty"), ("link", "a link"), ("file", "no folder")):
        with pytest.raises(UsageError, match=words):
            write(files, tmp_path / name)
    assert (tmp_path / "full" / "README.md").read_text() == "mine"
    assert [*(tmp_path / "elsewhere").iterdir()] == []
    (tmp_path / "empty").mkdir()
    write(files, tmp_path / "empty")
    assert {path.relative_to(tmp_path / "empty").as_posix() for path in (tmp_path / "empty").rglob("*.*")} == {*files}


def test_an_op_cannot_have_the_name_of_one_of_the_engine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plugins", "new", "layernorm", "--kind", "op", "--dir", str(tmp_path / "x")]) == 2
    assert "op layernorm: the engine has one of this name" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


def test_a_format_cannot_have_the_name_of_one_of_the_engine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plugins", "new", "int4", "--kind", "format", "--dir", str(tmp_path / "x")]) == 2
    assert "format int4-g32: the engine has one of this name" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["new", "check", "bench", "rust"])
def test_without_the_wheel_the_error_names_it(
    verb: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("INFENG_PLUGINS_DISABLE", "kit")
    assert cli.main(["plugins", verb, "x", "--kind", "kernel-c"]) == 2
    said = f"infeng: error: infeng plugins {verb}: no plugin brings it: install the wheel infeng-kit\n"
    assert capsys.readouterr().err == said
    assert cli.main(["plugins", "list"]) == 0


def test_the_abi_in_rust_has_every_constant_and_struct_of_the_header() -> None:
    text, header = bindings(HEADER), HEADER.read_text()
    for name in re.findall(r"typedef struct \w+ \{.*?\n\} (\w+);", header, re.DOTALL):
        assert f"pub struct {name} {{" in text
    for name in re.findall(r"^  (INFENG_\w+) = ", header, re.MULTILINE):
        assert f"pub const {name}: " in text
    minor = re.search(r"#define INFENG_ABI_MINOR (\d+)", header)
    assert minor is not None and f"pub const INFENG_ABI_MINOR: u32 = {minor[1]};" in text
    assert "pub const fn INFENG_NEED_BIT(need: u32) -> u64 {\n    1u64 << (need)\n}" in text
    assert "pub const INFENG_UNSUPPORTED_ABI: infeng_status = 3;" in text


@pytest.mark.skipif(not has_rust(), reason="rustc is not installed")
def test_the_structs_in_rust_have_the_sizes_and_offsets_of_c(tmp_path: Path) -> None:
    fields = {"infeng_problem": "workers", "infeng_kernel": "pack", "infeng_rmsnorm_args": "offset",
              "infeng_library_desc": "numerics", "infeng_weight": "foreign", "infeng_worker": "message",
              "infeng_attention_args": "slopes", "infeng_lora_segment": "bias"}  # fmt: skip
    (tmp_path / "abi.rs").write_text(module(infeng_abi.include_dir()))
    shown = [f'println!("{{}} {{}}", size_of::<{s}>(), std::mem::offset_of!({s}, {f}));' for s, f in fields.items()]
    (tmp_path / "main.rs").write_text(
        f"mod abi;\nuse abi::*;\nuse std::mem::size_of;\nfn main() {{ {' '.join(shown)} }}\n"
    )
    counted = [f'printf("%zu %zu\\n", sizeof({s}), offsetof({s}, {f}));' for s, f in fields.items()]
    (tmp_path / "main.c").write_text(
        f"#include <infeng/abi.h>\n#include <stdio.h>\nint main(void) {{ {' '.join(counted)} return 0; }}\n"
    )
    rustc = ["rustc", "--edition", "2021", "main.rs", "-o", "rust"]
    cc = ["cc", f"-I{infeng_abi.include_dir()}", "main.c", "-o", "c"]
    for command in (rustc, cc):
        subprocess.run(command, cwd=tmp_path, env=environ(), check=True, capture_output=True)
    outputs = [subprocess.run([tmp_path / name], capture_output=True, check=True).stdout for name in ("rust", "c")]
    assert outputs[0] == outputs[1] != b""


def test_the_assertions_in_rust_are_all_lines_of_the_check_in_c() -> None:
    layout = HEADER.with_name("layout_check.c").read_text()
    lines = re.findall(r"^(?:SIZE|AT|IS)\(", layout, re.MULTILINE)
    text = assertions(HEADER.with_name("layout_check.c"))
    assert text.count("    assert!(") == len(lines) > 380
    assert (
        "assert!(offset_of!(infeng_extension, r#type) == 4 && size_of_field!(infeng_extension, r#type) == 4);" in text
    )


def test_an_unknown_form_in_the_check_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "layout_check.c").write_text("AT(infeng_tensor, shape[1], 32, 8);\n")
    with pytest.raises(ValueError, match="unknown form of a line"):
        assertions(tmp_path / "layout_check.c")


def built_with_cargo(crate: Path) -> subprocess.CompletedProcess[str]:
    command = ["cargo", "build", "--offline", "--quiet"]
    return subprocess.run(command, cwd=crate, env=environ(), capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.skipif(not has_rust(), reason="rustc is not installed")
def test_the_crate_builds_only_where_its_layout_is_that_of_c(tmp_path: Path) -> None:
    crate = tmp_path / "infeng-abi"
    done = infeng("plugins", "rust", crate, cwd=tmp_path)
    assert done.returncode == 0 and f'infeng-abi = {{ path = "{crate}" }}' in done.stdout
    built = built_with_cargo(crate)
    assert (built.returncode, built.stderr) == (0, "")
    source = crate / "src" / "lib.rs"
    text = source.read_text()
    assert text.count("    pub device_id: i32,\n") == 1
    source.write_text(text.replace("    pub device_id: i32,\n", "    pub device_id: i64,\n"))
    broken = built_with_cargo(crate)
    assert broken.returncode != 0 and "infeng_tensor" in broken.stderr
    again = infeng("plugins", "rust", crate, cwd=tmp_path)
    assert again.returncode == 2 and "is not empty" in again.stderr


def test_an_unknown_form_in_a_header_is_an_error(tmp_path: Path) -> None:
    text = HEADER.read_text().replace("  int32_t index; /* in [0, count) */", "  int32_t index : 3;")
    assert ": 3;" in text
    (tmp_path / "abi.h").write_text(text)
    with pytest.raises(ValueError, match="unknown form of a field"):
        bindings(tmp_path / "abi.h")


def test_the_plugin_is_listed_with_its_hook() -> None:
    plugin = Plugins.discover().plugin("kit")
    assert plugin.usable
    assert plugin.names("hooks") == ("infeng_plugins_verbs",)
