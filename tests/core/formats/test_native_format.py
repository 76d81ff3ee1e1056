"""The engine-native directory: any safetensors reader opens it, and damage to any of its files is found and named."""

import mmap
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from convert_parts import load
from drawn import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from infeng_convert.conversion import convert
from infeng_convert.identity import conversion_key
from infeng_convert.shards import plan_shards
from infeng_convert.tensor_files import Entry
from safetensors import safe_open

from infeng_core.errors import InfengError, ModelError, UsageError
from infeng_core.formats.artifacts.manifest import Manifest, parse_manifest, read_manifest
from infeng_core.formats.artifacts.reader import read_native
from infeng_core.formats.format_choice import FormatChoice
from infeng_core.formats.quant import builtin_format
from infeng_core.formats.safetensors import read_header
from infeng_core.formats.tensors import LoadedModel
from infeng_core.plug.assembly import load_config

Maker = Callable[..., Path]
CHOICE = FormatChoice("int4-g64", {"embed": "int8-row"})


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory, write_model: Maker) -> Path:
    """A converted model that no test may change."""
    source = write_model(tmp_path_factory.mktemp("converted") / "model", attention_bias=True)
    return convert(source, source.with_name("native"), CHOICE).path


@pytest.fixture
def directory(converted: Path, tmp_path: Path) -> Path:
    """A converted model of the test's own."""
    return shutil.copytree(converted, tmp_path / "native")


def manifest_of(directory: Path) -> Manifest:
    return read_manifest(directory, builtin_format)


def edit(directory: Path, change: Callable[[dict[str, Any]], object], *, sign: bool = True) -> None:
    """Change the manifest's document; ``sign`` puts the id right again where the rest is still readable."""
    path = directory / "manifest.yaml"
    document = yaml.safe_load(path.read_text())
    change(document)
    path.write_text(yaml.safe_dump(document))
    if sign:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Manifest, "id", document["id"])
            try:
                manifest = parse_manifest(path.read_text(), path, builtin_format)
            except ModelError:
                return
        document["id"] = manifest.id
        path.write_text(yaml.safe_dump(document))


def test_any_safetensors_reader_opens_the_weights(directory: Path) -> None:
    manifest = manifest_of(directory)
    with safe_open(directory / "weights-00001.safetensors", "numpy") as file:
        assert set(file.keys()) == {*manifest.tensors, *manifest.vectors}
        for name, entry in manifest.tensors.items():
            tensor = file.get_tensor(name)
            assert tensor.dtype == np.uint8 and tensor.shape == (entry.panels, entry.panel_bytes)
        norm = file.get_tensor("norm")
    model = read_native(directory, builtin_format)
    assert norm.dtype == np.float32 and len(norm) == 80 and not norm[72:].any()
    np.testing.assert_array_equal(norm[:72], model.vectors["norm"])


def test_data_and_every_tensor_start_on_64_bytes(directory: Path) -> None:
    header = read_header(directory / "weights-00001.safetensors")
    assert header.data_begin % 64 == 0
    assert all(info.begin % 64 == 0 and info.nbytes % 64 == 0 for info in header.tensors.values())


@pytest.mark.parametrize("mode", ["copy", "mmap"])
def test_tensors_in_memory_are_aligned_whichever_way_they_are_loaded(directory: Path, mode: Any) -> None:
    model = read_native(directory, builtin_format, load=mode)
    for tensor in model.tensors.values():
        address = np.frombuffer(tensor.buffer, np.uint8).ctypes.data + tensor.offset
        assert address % 64 == 0
    for vector in model.vectors.values():
        assert vector.ctypes.data % 64 == 0


def test_copied_and_mapped_weights_are_the_same(directory: Path) -> None:
    copied, mapped = (read_native(directory, builtin_format, load=mode) for mode in ("copy", "mmap"))  # type: ignore[arg-type]
    assert isinstance(mapped.tensors["embed"].buffer, mmap.mmap)
    for name, tensor in copied.tensors.items():
        np.testing.assert_array_equal(tensor.dequantize(), mapped.tensors[name].dequantize())
    for name, vector in copied.vectors.items():
        np.testing.assert_array_equal(vector, mapped.vectors[name])


def test_config_and_tokenizer_files_travel_with_the_weights(directory: Path) -> None:
    model = load(directory, load_config())
    assert (model.tokenizer_dir / "tokenizer.json").is_file() and (directory / "config.json").is_file()
    assert set(manifest_of(directory).files) == {"config.json", "tokenizer.json"}


def test_named_chat_templates_travel_too_and_change_what_is_cached(make_model: Maker, tmp_path: Path) -> None:
    source = make_model()
    key = conversion_key(source, CHOICE)
    folder = source / "additional_chat_templates"
    folder.mkdir()
    (folder / "tool_use.jinja").write_text("{{ tools }}")
    (folder / "rag.jinja").write_text("{{ documents }}")
    (folder / "notes.txt").write_text("none of them")
    path = convert(source, tmp_path / "native", CHOICE).path
    assert (path / "chat_template.tool_use.jinja").read_text() == "{{ tools }}"
    assert (path / "chat_template.rag.jinja").is_file()
    assert manifest_of(path).files.keys() >= {"chat_template.tool_use.jinja", "chat_template.rag.jinja"}
    assert not any("notes" in name for name in manifest_of(path).files)
    assert conversion_key(source, CHOICE) != key
    assert load(path, load_config()).formats_used["embed"] == "int8-row"


def test_the_source_is_not_needed_afterwards(make_model: Maker, tmp_path: Path) -> None:
    source = make_model()
    path = convert(source, tmp_path / "native", CHOICE).path
    shutil.rmtree(source)
    assert load(path, load_config()).formats_used["embed"] == "int8-row"


def test_equal_contents_have_equal_ids_wherever_they_lie(make_model: Maker, tmp_path: Path) -> None:
    first, second, other = (make_model(name=name) for name in "abc")
    made = [convert(source, tmp_path / f"{source.name}-native", CHOICE) for source in (first, second)]
    made.append(convert(other, tmp_path / "c-native", FormatChoice("bf16")))
    assert made[0].id == made[1].id != made[2].id
    files = [(m.path / "weights-00001.safetensors").read_bytes() for m in made]
    assert files[0] == files[1]


def test_large_models_are_cut_into_files() -> None:
    entries = [Entry(name, "U8", (size,), size) for name, size in (("a", 64), ("b", 192), ("c", 64), ("d", 320))]
    shards = plan_shards(entries, limit=256)
    assert [[entry.name for entry in shard] for shard in shards.values()] == [["a", "b"], ["c"], ["d"]]
    assert list(shards) == ["weights-00001.safetensors", "weights-00002.safetensors", "weights-00003.safetensors"]


def test_a_model_in_several_files_loads(make_model: Maker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = convert(make_model(), tmp_path / "one", CHOICE)
    monkeypatch.setattr("infeng_convert.conversion.plan_shards", lambda entries: plan_shards(entries, 20_000))
    cut = convert(make_model(name="again"), tmp_path / "several", CHOICE)
    assert len(list(cut.path.glob("weights-*.safetensors"))) > 3
    for mode in ("copy", "mmap"):
        model = read_native(cut.path, builtin_format, load=mode)  # type: ignore[arg-type]
        assert model.id == whole.id and model.matrix("lm_head.weight").shape == (50, 72)


def refused(directory: Path, **options: Any) -> str:
    with pytest.raises(ModelError) as caught:
        read_native(directory, builtin_format, **options)
    assert caught.value.remedy
    return str(caught.value)


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def test_one_flipped_bit_is_found_and_its_tensor_named(directory: Path) -> None:
    path = directory / "weights-00001.safetensors"
    info = read_header(path).tensors["layers.1.o_proj"]
    flip(path, info.begin + info.nbytes // 2)
    assert "weights-00001.safetensors: tensor layers.1.o_proj does not match its checksum" in refused(directory)
    assert read_native(directory, builtin_format, verify=False).nbytes  # not looked for when told not to


@pytest.mark.parametrize(
    ("format", "damage", "text"),
    [
        # s = 16, z = 15: units below 7 are out of range
        ("int4-p32", {64: 0xFF, 128: 0}, "row 0, column 0: the weight"),
        ("int4-a256", {34: 0, 35: 0x7C}, "row 1, columns from 0: the scale of minima is NaN or infinite"),
    ],
)
def test_a_weight_that_its_format_forbids_is_found_whatever_the_checksum(
    make_model: Maker, tmp_path: Path, format: str, damage: dict[int, int], text: str
) -> None:
    made = convert(make_model(), tmp_path / "native", FormatChoice(format, {"embed": "int8-row"}))
    path = made.path / "weights-00001.safetensors"
    info = read_header(path).tensors["layers.1.down_proj"]
    data = bytearray(path.read_bytes())
    for at, byte in damage.items():
        data[info.begin + at] = byte
    path.write_bytes(data)
    message = refused(made.path, verify=False)
    assert f"weights-00001.safetensors: tensor layers.1.down_proj is no {format} ({text}" in message
    assert read_native(made.path, builtin_format, load="mmap").nbytes  # nothing is read


def test_a_changed_tokenizer_is_found(directory: Path) -> None:
    (directory / "tokenizer.json").write_text("{}")
    assert "tokenizer.json: does not match its checksum" in refused(directory)
    (directory / "tokenizer.json").unlink()
    assert "tokenizer.json: no such file: convert the model again" in refused(directory)


@pytest.mark.parametrize("mode", ["copy", "mmap"])
def test_truncated_or_missing_weights_are_named(directory: Path, mode: str) -> None:
    path = directory / "weights-00001.safetensors"
    path.write_bytes(path.read_bytes()[:-64])
    assert "64 bytes are missing" in refused(directory, load=mode)
    path.unlink()
    assert f"{path}: no such file" in refused(directory, load=mode)


def test_a_newer_major_version_says_update(directory: Path) -> None:
    edit(directory, lambda d: d.update(infeng_weights="2.0"))
    assert "is 2.0, this version of infeng reads 1.x: update infeng" in refused(directory)


def test_a_newer_minor_version_loads_and_its_new_keys_are_skipped(directory: Path) -> None:
    edit(directory, lambda d: d.update(infeng_weights="1.7", novelty={"a": 1}))
    assert read_native(directory, builtin_format).nbytes
    edit(directory, lambda d: d.update(infeng_weights="1.0"))
    assert "'novelty' is not a known key" in refused(directory)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda d: d.pop("tensors"), "tensors is missing"),
        (lambda d: d["tensors"].pop("embed"), "tensors.embed is missing"),
        (lambda d: d["tensors"].update(more=dict(d["tensors"]["embed"])), "is no tensor of this model"),
        (lambda d: d["vectors"].pop("norm"), "vectors.norm is missing"),
        (lambda d: d["vectors"]["norm"].update(size=71), "has size 71, not 72"),
        (lambda d: d["tensors"]["embed"].update(n=51), "has n, k, panels"),
        (lambda d: d["tensors"]["embed"].update(panel_bytes=64), "panel_bytes 64, which is wrong for int8-row"),
        (lambda d: d["tensors"]["embed"].update(panel_bytes=-64), "from 1"),
        (lambda d: d["tensors"]["embed"].update(format="int3"), "which cannot be used (unknown)"),
        (lambda d: d["tensors"]["embed"].update(format="f32"), "wrong for f32"),
        (lambda d: d["tensors"]["embed"].update(file="weights-00002.safetensors"), "not listed under weights"),
        (lambda d: d["tensors"]["embed"].update(sha256="0" * 63), "sha256"),
        (lambda d: d.update(weights=["../../etc/passwd"]), "list of names"),
        (lambda d: d.update(weights=[]), "list of names"),
        (lambda d: d["files"].update({"../x": "0" * 64}), "plain file name"),
        (lambda d: d["model"].update(layers=3), "layers.2.qkv_proj is missing"),
        (lambda d: d["model"].update(heads=5), "not a multiple"),
        (lambda d: d["model"].update(family="other"), "is 'other', supported are "),
        (lambda d: d["model"]["rope"].update(kind="spiral"), "supported are default"),
        (lambda d: d.update(infeng_weights="one"), "version such as"),
        (lambda d: d.update(infeng_weights=1.0), "must be a string"),
    ],
)
def test_a_manifest_that_contradicts_itself_is_refused(
    directory: Path, change: Callable[[dict[str, Any]], object], reason: str
) -> None:
    edit(directory, change)
    text = refused(directory)
    assert text.startswith(str(directory / "manifest.yaml")) and reason in text


def test_a_manifest_that_was_edited_is_noticed(directory: Path) -> None:
    edit(directory, lambda d: d["model"].update(rms_eps=1e-6), sign=False)
    assert "was changed or damaged" in refused(directory)


def test_a_manifest_that_contradicts_the_weights_is_refused(directory: Path, make_model: Maker, tmp_path: Path) -> None:
    other = convert(make_model(attention_bias=True), tmp_path / "other", FormatChoice("int8-row")).path
    shutil.copy(other / "weights-00001.safetensors", directory)
    assert "the manifest says" in refused(directory)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not a mapping"),
        (b"\xff\xfe\x00", "not UTF-8"),
        (b"a: [", "manifest.yaml:2"),
        (b"a: &x 1\nb: *x", "manifest.yaml:1: anchors"),
        (b"a: 1\na: 2", "manifest.yaml:2: a: given twice"),
        (b"[" * 50_000, "too deeply nested"),
        (b"- " * 50_000, "too deeply nested"),
        (b"a: 2001-99-99", "manifest.yaml:1: '2001-99-99' is not what its tag says"),
        (b"? [a]\n: 1", "a key must be a plain word"),
        (b"a: !!python/object:os.system {}", "is not known"),
    ],
)
def test_a_file_that_is_no_manifest_is_refused(directory: Path, data: bytes, reason: str) -> None:
    (directory / "manifest.yaml").write_bytes(data)
    assert reason in refused(directory)


def test_requesting_another_format_than_a_converted_models_is_a_usage_error(directory: Path) -> None:
    assert load(directory, load_config(overrides={"model.format": "int4-g64"})).nbytes
    with pytest.raises(UsageError, match=r"is stored as int\S+, f32 was asked for: leave the format out"):
        load(directory, load_config(overrides={"model.format": "f32"}))
    with pytest.raises(UsageError, match=r"layers\.0\.o_proj is stored as int4-g64, int4-g32 was asked for"):
        load(directory, load_config(overrides={"model.formats": {"layers.*.o_proj": "int4-g32"}}))
    with pytest.raises(UsageError, match="embed is stored as int8-row, bf16 was asked for"):
        load(directory, load_config(overrides={"model.formats.embed": "bf16"}))
    assert load(directory, load_config(overrides={"model.formats.embed": "int8-row"})).nbytes


def test_converting_a_converted_model_is_refused(directory: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="is converted already"):
        convert(directory, tmp_path / "twice", CHOICE)


@pytest.fixture(scope="module")
def good_manifest(tmp_path_factory: pytest.TempPathFactory, write_model: Maker) -> bytes:
    """The manifest of a one-layer model."""
    source = write_model(tmp_path_factory.mktemp("fuzz") / "model", num_hidden_layers=1)
    return (convert(source, source.with_name("native"), CHOICE).path / "manifest.yaml").read_bytes()


def accepted_or_refused(data: bytes) -> None:
    path = Path("fuzzed") / "manifest.yaml"
    try:
        parse_manifest(data.decode("utf-8", "replace"), path, builtin_format)
    except ModelError as error:
        assert error.what.partition(":")[0] == str(path)


@settings(max_examples=examples(60), deadline=None)
@given(data=st.data())
def test_no_mutation_of_a_manifest_does_worse_than_a_model_error(good_manifest: bytes, data: st.DataObject) -> None:
    mutated = bytearray(good_manifest)
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(mutated) - 1))
        piece = data.draw(
            st.binary(max_size=3) | st.sampled_from([b"-1", b"null", b"{}", b"[", b"\n", b": ", b"1e999"])
        )
        mutated[place : place + data.draw(st.integers(0, 12))] = piece
    accepted_or_refused(bytes(mutated))


values = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just([]) | st.just({})


@settings(max_examples=examples(60), deadline=None)
@given(data=st.data())
def test_no_value_of_a_manifest_does_worse_than_a_model_error(good_manifest: bytes, data: st.DataObject) -> None:
    document = yaml.safe_load(good_manifest)
    for _ in range(data.draw(st.integers(1, 3))):
        node = document
        while True:
            key = data.draw(st.sampled_from(sorted(node)))
            if not (isinstance(node[key], dict) and node[key] and data.draw(st.booleans())):
                break
            node = node[key]
        node[key] = data.draw(values)
    accepted_or_refused(yaml.safe_dump(document).encode())


def test_loading_asks_for_memory_before_it_takes_any(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("infeng_core.machine.memory.available_bytes", lambda: 1 << 20)
    with pytest.raises(InfengError, match=r"needs \d+ bytes .*, 1048576 bytes .* are available: free memory"):
        read_native(directory, builtin_format)
    monkeypatch.setattr("infeng_core.machine.memory.available_bytes", lambda: None)
    monkeypatch.setattr("infeng_core._native.Arena", lambda nbytes, pages: bytearray(1 << 62))
    with pytest.raises(InfengError, match=r"needs \d+ bytes .*, the system refuses them: free memory"):
        read_native(directory, builtin_format)
    model: LoadedModel = read_native(directory, builtin_format, load="mmap")
    assert model.nbytes
