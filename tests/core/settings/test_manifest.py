"""Manifests, environment and arguments become one configuration; errors name their place."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from infeng_core import _native, yamltree
from infeng_core.errors import ManifestError
from infeng_core.plug.assembly import load_config
from infeng_core.settings.config import SCHEMA, EngineConfig
from infeng_core.settings.manifest import parse_assignment, shipped_manifests

CACHES = ", ".join(_native.CACHE_FORMATS)


@pytest.fixture
def write(tmp_path):
    def write(text: str | bytes) -> Path:
        path = tmp_path / "engine.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def fails(path: Path, **arguments) -> str:
    with pytest.raises(ManifestError) as caught:
        load_config(path, environ={}, **arguments)
    assert caught.value.exit_status == 2
    return str(caught.value).replace(str(path), "engine.yaml")


def test_the_default_manifest_spells_out_the_defaults():
    shipped = load_config(shipped_manifests()["default"], environ={})
    assert shipped == EngineConfig()
    unsaid = [name for name, origin in shipped.provenance.items() if origin == "default"]
    assert not unsaid, "manifests/default.yaml leaves settings out"


@pytest.mark.parametrize("name", ["default", "exact-f32", "portable"])
def test_shipped_manifests_are_valid_and_known_by_name(name):
    assert load_config(name, environ={}) == load_config(shipped_manifests()[name], environ={})


def test_the_manifests_in_the_tree_are_the_shipped_ones():
    tree = Path(__file__).parents[3] / "manifests"
    shipped = {name: path.read_text() for name, path in shipped_manifests().items()}
    assert {path.stem: path.read_text() for path in tree.glob("*.yaml")} == shipped


def test_portable_uses_reference_kernels_only():
    assert load_config("portable", environ={}).kernels.order == ("reference",)


WRONG = {
    "infeng: 1\nkernels:\n  strict: true\n  ordr: [a]\n":
        "engine.yaml:4: kernels.ordr: unknown key: did you mean `order`?",
    "infeng: 1\nkernel: {}\n":
        "engine.yaml:2: kernel: unknown key: did you mean `kernels`?",
    "infeng: 1\n\nkv_cache: {dtype: int9}\n":
        f"engine.yaml:3: kv_cache.dtype: 'int9' is not one of {CACHES} (did you mean `int8`?)",
    "infeng: 1\nkv_cache: {block: 32}\n":
        "engine.yaml:2: kv_cache.block: 32 is out of range: must be 16",
    "infeng: 1\nkv_cache: {memory: much}\n":
        'engine.yaml:2: kv_cache.memory: expected bytes or a size such as "512MB", found \'much\' (or the word auto)',
    "infeng: 1\nscheduler: {max_running: yes}\n":
        "engine.yaml:2: scheduler.max_running: expected a whole number, found true/false",
    "infeng: 1\nscheduler: {max_running: -1}\n":
        "engine.yaml:2: scheduler.max_running: -1 is out of range: must be from 1 to 4096",
    "infeng: 1\nkernels: {order: avx512}\n":
        "engine.yaml:2: kernels.order: expected a list, found text",
    "infeng: 1\nkernels: {order: [avx512, avx512]}\n":
        "engine.yaml:2: kernels.order: the same item is listed twice",
    "infeng: 1\nkernels: {force: [linear]}\n":
        "engine.yaml:2: kernels.force: expected names and values, found a list",
    "infeng: 1\nkernels: {strict: 1}\n":
        "engine.yaml:2: kernels.strict: expected true or false, found a whole number",
    "infeng: 1\nthreads: {nodes: both}\n":
        "engine.yaml:2: threads.nodes: expected a list, found text (or the word auto or all)",
    "infeng: 1\nthreads: {nodes: [-1]}\n":
        "engine.yaml:2: threads.nodes: -1 is out of range: must be from 0 to 1023 (or the word auto or all)",
    "infeng: 1\nthreads: {smt: some}\n":
        "engine.yaml:2: threads.smt: expected true or false, found text (or the word auto)",
    "infeng: 1\nmemory: {place: near}\n":
        "engine.yaml:2: memory.place: 'near' is not one of auto, local, interleave, first-touch",
    "infeng: 1\nmodel: {format: }\n":
        "engine.yaml:2: model.format: expected text, found nothing",
    "infeng: 1\nmodel: int4-g64\n":
        "engine.yaml:2: model: expected keys and values, found text",
    "infeng: 1\nmodel: {path: a}\nmodel: {path: b}\n":
        "engine.yaml:3: model: given twice: keep one of the two",
    "infeng: 2\n":
        "engine.yaml:1: infeng: expected 1, the manifest version: start the file with `infeng: 1`",
    "model: {path: a}\n":
        "engine.yaml:1: infeng: expected 1, the manifest version: start the file with `infeng: 1`",
    "":
        "engine.yaml:1: infeng: expected 1, the manifest version: start the file with `infeng: 1`",
    "- infeng\n":
        "engine.yaml:1: expected keys and values, found a list",
    "infeng: 1\n? [a]\n: b\n":
        "engine.yaml:2: a key must be a plain word",
}  # fmt: skip


@pytest.mark.parametrize("text", WRONG, ids=range(len(WRONG)))
def test_a_mistake_is_named_with_line_key_and_remedy(write, text):
    assert fails(write(text)) == WRONG[text]


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("infeng: 1\nmodel: {path: [\n", "engine.yaml:3"),
        ("infeng: 1\n\tmodel: 2\n", "engine.yaml:2"),
        (b"infeng: 1\nmodel: {path: \xff}\n", "engine.yaml: not UTF-8"),
        ("infeng: &a [*a]\n", "engine.yaml"),
        ("infeng: !!python/object:os.system x\n", "engine.yaml"),
        ("a: &a [1,2,3,4,5,6,7,8,9]\n" + "".join(
            f"{chr(98 + i)}: &{chr(98 + i)} [{','.join(['*' + chr(97 + i)] * 9)}]\n" for i in range(8)), "engine.yaml"),
    ],
)  # fmt: skip
def test_a_broken_file_is_an_error_and_not_a_crash(write, text, start):
    assert fails(write(text)).startswith(start)


def test_a_missing_file_is_named(tmp_path):
    assert fails(tmp_path / "engine.yaml") == "engine.yaml: no such file: check the path"


def test_argument_beats_environment_beats_manifest_beats_default(write):
    path = write("infeng: 1\nthreads: {count: 3, pin: false}\ntokenizer: {threads: 4}\n")
    config = load_config(
        path,
        overrides={"threads.count": 7},
        environ={"INFENG_THREADS_COUNT": "5", "INFENG_TOKENIZER_THREADS": "6", "INFENG_KV_CACHE_DTYPE": "f32"},
    )
    assert (config.threads.count, config.tokenizer.threads, config.threads.pin) == (7, 6, False)
    assert config.kv_cache.dtype == "f32"
    assert config.provenance["threads.count"] == "argument"
    assert config.provenance["tokenizer.threads"] == "INFENG_TOKENIZER_THREADS"
    assert config.provenance["threads.pin"] == f"{path}:2"
    assert config.provenance["scheduler.use"] == "default"
    assert set(config.provenance) == {f"{s}.{k}" for s, keys in SCHEMA.items() for k in keys} == set(config.values())


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("kernels.order", "avx2, reference", ("avx2", "reference")),
        ("kernels.order", "", ()),
        ("kernels.order", '[avx2, "*"]', ("avx2", "*")),
        ("model.formats", '{"layers.*.down_proj": "int8-row"}', {"layers.*.down_proj": "int8-row"}),
        ("model.formats", "", {}),
        ("kernels.force", "linear=avx512,rope=reference", {"linear": "avx512", "rope": "reference"}),
        ("kernels.strict", "on", True),
        ("threads.pin", "auto", "auto"),
        ("threads.pin", "no", False),
        ("threads.count", "12", 12),
        ("threads.smt", "on", True),
        ("threads.smt", "auto", "auto"),
        ("threads.nodes", "all", "all"),
        ("threads.nodes", "0,2", (0, 2)),
        ("threads.nodes", "[1]", (1,)),
        ("memory.lock", "true", True),
        ("memory.place", "first-touch", "first-touch"),
        ("kv_cache.memory", "512MB", 512 << 20),
        ("kv_cache.memory", "1.5 GiB", 3 << 29),
        ("kv_cache.memory", "4096", 4096),
        ("model.path", "null", None),
        ("model.formats", "layers.*.down_proj=int8-row", {"layers.*.down_proj": "int8-row"}),
    ],
)
def test_text_is_parsed_by_the_settings_kind(key, text, value):
    section, name = key.split(".")
    variable = f"INFENG_{section}_{name}".upper()
    for config in (load_config(overrides={key: text}, environ={}), load_config(environ={variable: text})):
        found = getattr(getattr(config, section), name)
        assert (dict(found) if isinstance(value, dict) else found) == value


def test_one_entry_of_a_map_can_be_set(write):
    path = write("infeng: 1\nkernels: {force: {linear: reference, rope: reference}}\n")
    config = load_config(path, overrides={"kernels.force.linear": "avx512"}, environ={})
    assert config.kernels.force == {"linear": "avx512", "rope": "reference"}


def test_short_environment_variables_set_their_settings(write):
    config = load_config(environ={"INFENG_FORCE": "linear=avx512", "INFENG_DISABLE": "amx,avx2"})
    assert config.kernels.force == {"linear": "avx512"}
    assert config.kernels.disable == ("amx", "avx2")
    assert config.provenance["kernels.disable"] == "INFENG_DISABLE"


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        (
            {"INFENG_THREADS_CONT": "2"},
            "environment variable INFENG_THREADS_CONT: unknown setting: did you mean `count`?",
        ),
        ({"INFENG_THREADS_COUNT": "two"}, "INFENG_THREADS_COUNT: expected a whole number, found 'two'"),
        ({"INFENG_FORCE": "{linear: [}"}, "INFENG_FORCE: not valid YAML"),
        ({"INFENG_FORCE": "linear"}, "INFENG_FORCE: expected name=value, found 'linear'"),
    ],
)
def test_a_wrong_variable_is_named(environ, words):
    with pytest.raises(ManifestError) as caught:
        load_config(environ=environ)
    assert words in str(caught.value)


def test_unrelated_environment_variables_are_ignored():
    assert load_config(environ={"INFENG_LOG": "debug", "INFENG_CACHE": "/x", "INFENG_MYPLUGIN": "1"}) == EngineConfig()


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("threads.cuont", "argument threads.cuont: unknown setting: did you mean `count`?"),
        ("thread.count", "argument thread.count: unknown setting: did you mean `threads`?"),
        ("threads", "argument threads: unknown setting"),
        ("threads.count.x", "argument threads.count.x: unknown setting"),
    ],
)
def test_a_wrong_argument_is_named(key, words):
    with pytest.raises(ManifestError) as caught:
        load_config(overrides={key: "1"}, environ={})
    assert words in str(caught.value)


def test_a_path_in_a_manifest_is_beside_the_manifest(write, tmp_path, monkeypatch):
    (tmp_path / "weights").mkdir()
    monkeypatch.chdir("/")
    path = write("infeng: 1\nmodel: {path: weights}\nplugins: {paths: [weights, org/name]}\n")
    config = load_config(path, environ={})
    assert config.model.path == str(tmp_path / "weights")
    assert config.plugins.paths == (str(tmp_path / "weights"), "org/name")


def test_command_line_assignments_are_split_at_the_first_equals_sign():
    assert parse_assignment("kernels.force=linear=avx512") == ("kernels.force", "linear=avx512")
    for text in ("kernels", "kernels=1", "=1"):
        with pytest.raises(ManifestError, match="write --set"):
            parse_assignment(text)


def test_a_configuration_cannot_be_changed():
    config = load_config(environ={})
    with pytest.raises(AttributeError):
        config.threads.count = 3
    with pytest.raises(TypeError):
        config.model.formats["embed"] = "f32"


KEYS = sorted(f"{section}.{key}" for section, keys in SCHEMA.items() for key in keys)


@given(
    st.sampled_from(KEYS), st.one_of(st.text(max_size=20), st.integers(), st.none(), st.booleans(), st.lists(st.text()))
)
def test_any_value_is_taken_in_its_type_or_refused(key, value):
    section, name = key.split(".")
    kind = SCHEMA[section][name].metadata["kind"]
    try:
        config = load_config(overrides={key: value}, environ={})
    except ManifestError as error:
        assert key in str(error)
    else:
        found = getattr(getattr(config, section), name)
        assert kind.check(dict(found) if hasattr(found, "items") else found) == found


@given(
    st.dictionaries(
        st.text(max_size=8),
        st.one_of(st.none(), st.text(max_size=8), st.dictionaries(st.text(max_size=8), st.integers())),
    )
)
def test_any_mapping_is_a_manifest_or_a_named_error(tmp_path_factory, data):
    import yaml

    path = tmp_path_factory.mktemp("fuzz") / "engine.yaml"
    path.write_text(yaml.safe_dump({"infeng": 1, **data}, allow_unicode=True), encoding="utf-8")
    try:
        load_config(path, environ={})
    except ManifestError as error:
        assert str(path) in str(error)


TAGGED = ["!!int ''", "!!float x", "!!bool null", "!!timestamp 2001-99-99", "!!timestamp " + "9" * 5000, "!!binary '*'",
          "!!set {a: 1}", "!!python/object/apply:os.system [x]", "!foo x", "&a 1", "*a", "<<", "=", "!!merge <<",
          "9" * 5000, "1:2:3", "0x", "\0", "{a: {a: {a: " * 200, "[" * 100_000, "- - -", "%YAML 9.9", "? x",
          "'"]  # fmt: skip


@pytest.mark.parametrize("value", TAGGED, ids=range(len(TAGGED)))
@pytest.mark.parametrize("form", ["{{a: {}}}", "[{}]", "{{<<: {}}}", "{{{}: 1}}", "{}"])
@pytest.mark.parametrize("reader", [yaml.CSafeLoader, yaml.SafeLoader])
def test_yaml_of_any_kind_is_read_or_refused_by_name_wherever_it_stands(tmp_path, monkeypatch, value, form, reader):
    monkeypatch.setattr(yamltree, "_Loader", reader)
    text = form.format(value)
    file = tmp_path / "engine.yaml"
    file.write_text(f"infeng: 1\nkernels: {{force: {text}}}\nmodel: {{formats: {text}}}\n")
    for read in (
        lambda: load_config(overrides={"model.formats": text}),
        lambda: load_config(overrides={"kernels.order": text}),
        lambda: load_config(environ={"INFENG_MODEL_FORMATS": text}),
        lambda: load_config(environ={"INFENG_FORCE": text}),
        lambda: load_config(file),
    ):
        with contextlib.suppress(ManifestError):
            read()


def test_a_yaml_tag_in_a_variable_is_refused_by_name():
    with pytest.raises(ManifestError, match=r"INFENG_MODEL_FORMATS: not valid YAML: .*'' is not what its tag says"):
        load_config(environ={"INFENG_MODEL_FORMATS": "{a: !!int ''}"})


@pytest.mark.parametrize("overrides", [{5: 1}, {None: 1}, {("a",): 1}, 5, None, [("a", 1)]])
def test_overrides_are_a_mapping_of_texts(overrides):
    with pytest.raises(ManifestError, match="overrides: "):
        load_config(overrides=overrides)


@pytest.mark.parametrize("manifest", ["x" * 300, "x" * 5000, "a\0b", "\ud800", 5, b"x", "~nouser/x"])
def test_a_manifest_that_cannot_be_a_file_is_a_named_error(manifest):
    with pytest.raises(ManifestError):
        load_config(manifest)


def test_a_path_that_is_too_long_to_look_for_stays_as_it_is(write):
    assert load_config(write(f"infeng: 1\nmodel: {{path: {'x' * 5000}}}")).model.path == "x" * 5000
