"""Reports of `infeng plugins check`: green ones, and ones that name what is wrong."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from kit_parts import WORDS, begun, checked, has_rust, infeng

OFTEN = ("kernel-c", "tokenizer")  # a check takes up to minutes
KINDS = [pytest.param(kind, marks=pytest.mark.slow if kind in OFTEN else pytest.mark.nightly) for kind in sorted(WORDS)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_project_is_green(kind: str, tmp_path: Path) -> None:
    if kind == "kernel-rust" and not has_rust():
        pytest.skip("rustc is not installed")
    found = checked(begun(kind, tmp_path / "project"), cwd=tmp_path)
    assert (found.status, found.of("failed")) == (0, [])
    assert {line["part"] for line in found.of("ok")} >= {"wheel", "plugin.yaml", "tests"}
    assert len(found.of("ok")) >= 4
    assert {line["part"] for line in found.of("skipped")} <= {"kernel rope_cc"}


@pytest.fixture(scope="module")
def norm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a project with a kernel in C."""
    return begun("kernel-c", tmp_path_factory.mktemp("norm") / "project")


def edited(norm: Path, folder: Path, old: str, new: str, file: str = "rmsnorm.c") -> Path:
    """Return a copy of a project without tests, with a part of a file replaced."""
    project = Path(shutil.copytree(norm, folder / "edited", ignore=shutil.ignore_patterns("tests")))
    text = (project / file).read_text()
    assert old in text
    (project / file).write_text(text.replace(old, new))
    return project


LAST = "for (int64_t i = 0; i < k; i++) y[i] = (x[i] * r) * weight[i];"


@pytest.mark.slow
def test_a_kernel_that_is_wrong_at_the_sizes_of_a_model_is_named(norm: Path, tmp_path: Path) -> None:
    wrong = LAST.replace("i < k;", "i < k - (k > 1535);")  # the engine's own check has at most 1535 columns
    found = checked(edited(norm, tmp_path, LAST, wrong), cwd=tmp_path)
    assert found.status == 1
    [line] = [line for line in found.of("failed") if line["part"] == "kernel rmsnorm_c" and "sizes" in line["text"]]
    assert "at the sizes of a Llama of 1.1B" in line["text"]
    assert "column 2047" in line["text"]
    assert not [line for line in found.lines if line["part"] == "engine"]


@pytest.mark.slow
def test_a_malformed_op_and_a_wrong_second_kernel_of_an_op_are_named(tmp_path: Path) -> None:
    clip = begun("op", tmp_path / "clip")
    [source] = [path.name for path in clip.glob("*.c")]
    bad = edited(clip, tmp_path / "bad", "sizeof operands / sizeof *operands", "0", source)
    found = checked(bad, cwd=tmp_path)
    assert "op clipx: it has 0 operands" in " ".join(line["text"] for line in found.of("failed"))
    second = (
        "static infeng_status run2(const infeng_args* a, int32_t p, int64_t f, int64_t l, infeng_worker* w) {\n"
        "  const infeng_status s = run(a, p, f, l, w);\n"
        "  if (f < l) ((float*)((const op_args*)a)->out.data)[f * ((const op_args*)a)->out.strides[0]] += 1;\n"
        "  return s;\n}\n"
        'static const infeng_kernel other = {sizeof other, INFENG_OP_FOREIGN, 0, "clipx_fast", "", 1, 1, 9, 0, 0,\n'
        "                                    accepts, 0, 0, 0, 0, tiles, run2, 0, 0};\n"
        "static const infeng_kernel* const kernels[] = {&other, "
    )
    wrong = edited(clip, tmp_path / "wrong", "static const infeng_kernel* const kernels[] = {", second, source)
    listed = wrong / "infeng_clipx" / "plugin.yaml"
    listed.write_text(listed.read_text().replace("kernels:", "kernels:\n    - {name: clipx_fast, op: clipx}"))
    found = checked(wrong, cwd=tmp_path)
    assert {line["part"] for line in found.of("failed")} == {"kernel clipx_fast"}
    assert "cases differ" in found.of("failed")[0]["text"]


@pytest.mark.slow
def test_a_kernel_that_crashes_is_named_with_its_case(norm: Path, tmp_path: Path) -> None:
    crash = "if (k == 576) *(volatile float*)8 = 0; " + LAST
    found = checked(edited(norm, tmp_path, LAST, crash), cwd=tmp_path)
    assert found.status == 1
    [line] = found.of("failed")
    assert line["part"] == "kernel rmsnorm_c"
    assert re.search(r"crashed \(SIGSEGV\), in kernel rmsnorm_c, case 1x576-plain", line["text"])
    assert "--sanitize" in line["remedy"]


@pytest.mark.nightly
def test_a_kernel_that_never_returns_is_named_with_its_case(norm: Path, tmp_path: Path) -> None:
    endless = "for (volatile int64_t wait = 1; k == 896 && wait;) { } " + LAST
    found = checked(edited(norm, tmp_path, LAST, endless), cwd=tmp_path)
    assert found.status == 1
    [line] = found.of("failed")
    assert line["part"] == "kernel rmsnorm_c"
    assert "used up its processor time, in kernel rmsnorm_c, case 1x896-plain" in line["text"]


@pytest.mark.nightly
def test_a_library_that_crashes_when_it_is_opened_is_named(norm: Path, tmp_path: Path) -> None:
    crash = "static __attribute__((constructor)) void begin(void) { __builtin_trap(); }\n#define KERNELS(X)"
    found = checked(edited(norm, tmp_path, "#define KERNELS(X)", crash, "library.c"), cwd=tmp_path)
    assert found.status == 1
    assert [line["part"] for line in found.of("failed")] == ["library my-norm"]
    assert "crashed" in found.of("failed")[0]["text"]


@pytest.mark.nightly
def test_a_table_that_differs_from_plugin_yaml_is_named(norm: Path, tmp_path: Path) -> None:
    project = edited(norm, tmp_path, "rmsnorm_c, op", "rmsnorm_d, op", "infeng_my_norm/plugin.yaml")
    found = checked(project, cwd=tmp_path)
    assert found.status == 1
    said = " ".join(line["text"] for line in found.of("failed"))
    assert "the library has the kernel rmsnorm_c, which plugin.yaml does not list" in said
    assert "plugin.yaml lists the kernel rmsnorm_d, which the library does not have" in said


@pytest.mark.nightly
def test_a_source_that_does_not_compile_is_named_with_the_compiler_s_words(norm: Path, tmp_path: Path) -> None:
    found = checked(edited(norm, tmp_path, LAST, "nothing;"), cwd=tmp_path)
    assert found.status == 1
    [line] = found.lines
    assert line["part"] == "wheel"
    assert re.search(r"rmsnorm\.c:\d+:\d+: error: .*nothing", line["text"])


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a project with a tokenizer."""
    return begun("tokenizer", tmp_path_factory.mktemp("tokenizer") / "project")


CODE = "infeng_bytesx/__init__.py"


@pytest.mark.slow
def test_a_typo_in_plugin_yaml_is_named_with_the_key_that_was_meant(tokenizer: Path, tmp_path: Path) -> None:
    project = edited(tokenizer, tmp_path, "provides:", "provdes:", "infeng_bytesx/plugin.yaml")
    found = checked(project, cwd=tmp_path)
    assert found.status == 1
    [line] = found.of("failed")
    assert line["part"] == "plugin.yaml"
    assert "provdes" in line["text"]
    assert "did you mean `provides`" in line["text"] + line["remedy"]


@pytest.mark.nightly
def test_an_entry_point_with_another_name_than_the_plugin_is_named(tokenizer: Path, tmp_path: Path) -> None:
    found = checked(edited(tokenizer, tmp_path, 'bytesx = "infeng', 'bytesy = "infeng', "pyproject.toml"), cwd=tmp_path)
    assert found.status == 1
    assert "the plugin is called bytesx, the entry point bytesy" in found.of("failed")[0]["text"]


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('{"bytesx": make}', '{"bytesx": make, "other": make}', "returns other, which plugin.yaml does not list"),
        ('{"bytesx": make}', '{"bytez": make}', "promises the tokenizer bytesx, which it does not bring"),
        ("@hookimpl\ndef infeng_tokenizers", "@hookimpl\ndef infeng_tokenizer", "infeng_tokenizer"),
        ('return self.bytes(tokens).decode("utf-8", errors="replace")',
         'return self.bytes(tokens).decode("latin-1")', "comes back as"),
        ("return self._decoder.decode(self._tokenizer.bytes([token]))",
         'return self._tokenizer.bytes([token]).decode("utf-8", errors="replace")', "piece by piece"),
    ],
)  # fmt: skip
def test_a_wrong_tokenizer_is_named(tokenizer: Path, tmp_path: Path, old: str, new: str, words: str) -> None:
    found = checked(edited(tokenizer, tmp_path, old, new, CODE), cwd=tmp_path)
    assert found.status == 1
    assert words in " ".join(line["text"] for line in found.of("failed"))


@pytest.mark.nightly
def test_a_policy_that_lets_requests_starve_is_named(tmp_path: Path) -> None:
    project = begun("policy", tmp_path / "project")
    newest = "return sorted(self._waiting, key=lambda request: -request.arrived)"
    made = edited(project, tmp_path, "return sorted(self._waiting, key=place)", newest, "infeng_shortestx/__init__.py")
    found = checked(made, cwd=tmp_path)
    assert found.status == 1
    assert "that had come later" in found.of("failed")[0]["text"]


@pytest.mark.nightly
def test_an_installed_plugin_is_checked_by_its_name(tmp_path: Path) -> None:
    found = checked("fair", cwd=tmp_path)
    assert (found.status, found.of("failed")) == (0, [])
    assert "policy fair" in {line["part"] for line in found.of("ok")}


def test_what_is_no_project_and_no_plugin_is_an_error_of_use(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    done = infeng("plugins", "check", "empty", cwd=tmp_path)
    assert done.returncode == 2
    assert "empty/pyproject.toml: cannot be read: No such file or directory" in done.stderr
    done = infeng("plugins", "check", "avx521", cwd=tmp_path)
    assert done.returncode != 0
    assert "plugin avx521: not installed" in done.stderr


@pytest.mark.nightly
def test_sanitizers_name_the_line_of_an_access_outside_an_array(norm: Path, tmp_path: Path) -> None:
    outside = "volatile float beyond[4] = {0}; volatile int64_t at = 4; beyond[at] = 1; " + LAST
    found = checked(edited(norm, tmp_path, LAST, outside), "--sanitize", cwd=tmp_path)
    assert found.status == 1
    assert re.search(r"rmsnorm\.c:\d+", " ".join(line["text"] for line in found.of("failed")))
