"""The plugins of docs/examples, each used: tokens come out that could only come through it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import caches
import numpy as np
import pytest
import tiny_adapter
import tiny_model
import yaml
from convert_parts import load
from infeng_convert.conversion import convert
from infeng_convert.interfaces.quantizers import QuantTarget
from infeng_convert.quantizers import quantizer_of
from safetensors.numpy import load_file, save_file

from infeng_core import _native, cli
from infeng_core.engine import Engine
from infeng_core.errors import AdapterError, ManifestError, ModelError, PluginError, RequestError, UsageError
from infeng_core.formats.adapters.target_modules import target_modules
from infeng_core.formats.artifacts.manifest import read_manifest
from infeng_core.formats.format_choice import FormatChoice
from infeng_core.formats.quant import Grid, builtin_format
from infeng_core.models import families
from infeng_core.plug.assembly import load_config
from infeng_core.plug.manager import Plugins
from infeng_core.requests.request import Request, SamplingParams

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
COMPILED = ("kernel", "format", "op")
PYTHON = {p.parents[1].name: p for p in EXAMPLES.glob("*/infeng_*/plugin.yaml") if p.parts[-3] not in COMPILED}
GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)


@pytest.fixture(autouse=True)
def own(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nothing of the user's settings, a shared cache, and no module or family that stays."""
    for name in [name for name in os.environ if name.startswith("INFENG_") and name != "INFENG_TEST_DATA"]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("INFENG_CACHE", str(caches.shared(tmp_path_factory)))
    monkeypatch.setattr(families, "added", {})
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name in [path.parent.name for path in PYTHON.values()]:
        sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model.write(tmp_path_factory.mktemp("tiny") / "model")


def engine(model: Path, *examples: str, **settings: Any) -> Engine:
    paths = [str(PYTHON[name]) for name in examples]
    overrides = {key.replace("__", "."): value for key, value in settings.items()}
    return Engine(model, threads=1, overrides={"plugins.paths": paths, **overrides})


def ids(made: Engine, prompt: Any = "the quick") -> tuple[int, ...]:
    with made:
        return made.generate(prompt, GREEDY)[0].token_ids


def test_there_is_an_example_for_each_kind() -> None:
    kinds = {"backend", "command", "drafter", "family", "logits", "prefix_store", "quantizer", "scheduler", "source"}
    kinds |= {
        "adapter_reader",
        "calibrator",
        "converter",
        "locator",
        "model_reader",
        "observer",
        "run_options",
        "tokenizer",
    }
    assert PYTHON.keys() >= kinds


def test_the_drafter_guesses_and_changes_no_token(tiny: Path) -> None:
    with engine(tiny, "drafter", speculation__use="again", again__window=2) as made:
        answer = made.generate([[5, 6, 7]], GREEDY)[0]
    assert answer.usage.drafted_tokens > 0
    assert answer.token_ids == ids(engine(tiny), [[5, 6, 7]])


def test_the_drafter_with_a_head_sees_the_state_of_each_token_and_changes_none(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = replace(GREEDY, max_tokens=150)
    requests = [Request((5, 6, 7) * 5, params), Request((9,), replace(params, temperature=0.8, seed=1))]
    with engine(tiny, "drafter_mtp", speculation__use="nextnext", nextnext__learn=8) as made:
        import infeng_nextnext

        seen: list[tuple[int, tuple[int, ...]]] = []
        see = infeng_nextnext.NextNext.see

        def counted(self: Any, position: int, states: Any) -> None:
            seen.append((position, states.shape))
            see(self, position, states)

        monkeypatch.setattr(infeng_nextnext.NextNext, "see", counted)
        found = made.generate(requests)
        hidden = made.model.config.hidden
    assert [one.token_ids for one in found] == [one.token_ids for one in engine(tiny).generate(requests)]
    usage = found[0].usage
    assert 0 < usage.accepted_tokens <= usage.drafted_tokens < 150
    # A row for each token of the prompts, and for each new one but the last, which is read by no step.
    assert sum(shape[0] for _, shape in seen) == sum(one.usage.total_tokens - 1 for one in found)
    assert {shape[1:] for _, shape in seen} == {(hidden,)}


def test_the_observer_writes_a_line_for_each_request_and_each_change_of_an_adapter(tiny: Path, tmp_path: Path) -> None:
    bard = tiny_adapter.write(tmp_path / "bard", 1)
    with engine(tiny, "observer", observers__use=["lines"], lines__path=str(tmp_path / "lines")) as made:
        made.adapters.load("bard", bard)
        answers = made.generate([[5, 6, 7]] * 2, GREEDY, adapters=[None, "bard"])
        made.adapters.unload("bard")
    lines = [json.loads(line) for line in (tmp_path / "lines").read_text().splitlines()]
    ended = sorted((line for line in lines if "request" in line), key=lambda line: line["request"])
    assert ended == [
        {"request": 0, "reason": "length", "tokens": [3, 24]},
        {"request": 1, "adapter": "bard", "reason": "length", "tokens": [3, 24]},
    ]
    changes = [line for line in lines if "change" in line]
    assert changes == [{"adapter": "bard", "change": "loaded"}, {"adapter": "bard", "change": "unloaded"}]
    assert lines[-1]["rows"] == 2 * (3 + 23) and lines[-1]["steps"] >= 24
    assert answers[0].token_ids == ids(engine(tiny), [[5, 6, 7]]) != answers[1].token_ids


def test_an_observer_that_lacks_a_method_is_named(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with engine(tiny, "observer", observers__use=["lines"], lines__path=str(tmp_path / "lines")):
        import infeng_lines

        monkeypatch.setattr(infeng_lines, "Lines", lambda path: object())
        with pytest.raises(PluginError, match="plugin lines: observer lines: it has no begin"):
            engine(tiny, "observer", observers__use=["lines"])


@pytest.mark.parametrize(("patience", "order"), [(1000.0, [2, 1, 0]), (0.0, [0, 1, 2])])
def test_the_scheduler_starts_short_prompts_first_without_starving_long_ones(
    tiny: Path, patience: float, order: list[int]
) -> None:
    prompts = [[5] * 9, [6] * 5, [7] * 2]
    settings = {"scheduler__use": "shortest", "shortest__patience": patience, "scheduler__max_running": 1}
    with engine(tiny, "scheduler", **settings) as made:
        ended = [event.index for event in made.stream(prompts, GREEDY) if event.completion is not None]
        answers = [one.token_ids for one in made.generate(prompts, GREEDY)]
    assert ended == order
    with engine(tiny) as made:
        assert answers == [one.token_ids for one in made.generate(prompts, GREEDY)]


def test_guesses_outside_of_the_vocabulary_are_dropped(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with engine(tiny, "drafter", speculation__use="again") as made:
        import infeng_again

        monkeypatch.setattr(infeng_again.Again, "draft", lambda self, count: [10**6] * count)
        answer = made.generate([[5, 6, 7]], GREEDY)[0]
    assert answer.usage.drafted_tokens == 0
    assert len(answer.token_ids) == 24


def test_a_drafter_that_guesses_more_than_asked_for_is_named_and_not_asked_again(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with engine(tiny, "drafter", speculation__use="again") as made:
        import infeng_again

        monkeypatch.setattr(infeng_again.Again, "draft", lambda self, count: [5] * (count + 1))
        answer = made.generate([[5, 6, 7]], GREEDY)[0]
    assert re.search(r"plugin again: drafter again: draft\(\) returned \d tokens where", capsys.readouterr().err)
    assert answer.usage.drafted_tokens == 0
    assert len(answer.token_ids) == 24


def test_the_prefix_store_hands_prefixes_to_the_next_engine(tiny: Path, tmp_path: Path) -> None:
    prompt = [list(range(5, 45))]
    settings = {"kv_cache__prefix_store": "kept", "kv_cache__prefix_dir": str(tmp_path / "none")}
    with engine(tiny, "prefix_store", **settings) as first:
        expected = first.generate(prompt, GREEDY)[0]
    with engine(tiny, "prefix_store", **settings) as second:
        answer = second.generate(prompt, GREEDY)[0]
    assert (expected.usage.cached_tokens, answer.usage.cached_tokens) == (0, 32)
    assert answer.token_ids == expected.token_ids == ids(engine(tiny), prompt)
    assert not (tmp_path / "none").exists()


TEXTS = ("the quick brown", "the lazy dog", "héllo")


def test_the_logit_processor_lets_an_answer_be_one_of_the_texts(tiny: Path) -> None:
    warm = SamplingParams(temperature=5.0, seed=1, processors={"choice": TEXTS})  # type: ignore[arg-type]
    with engine(tiny, "logits") as made:
        found = made.generate([Request("the", replace(warm, seed=seed)) for seed in range(30)])
        free = made.generate("the", replace(warm, processors=()))[0]
    assert {answer.text for answer in found} == set(TEXTS)
    assert all(answer.finish_reason == "stop" for answer in found)
    assert free.text not in TEXTS


def test_settings_reach_the_logit_processor_and_its_errors_the_caller(tiny: Path) -> None:
    greedy = replace(GREEDY, ignore_eos=False, processors=(("choice", ["yes", "no"]),))
    with engine(tiny, "logits", choice__before=" = ") as made:
        assert made.generate("the", greedy)[0].text in (" = yes", " = no")
        for argument in (None, 5, (), ("a", 1)):
            with pytest.raises(RequestError, match=r"choice: .* are no texts: give some"):
                made.generate("the", replace(greedy, processors=(("choice", argument),)))
        with pytest.raises(PluginError, match="logit processor choise: no plugin provides it: did you mean `choice`"):
            made.generate("the", replace(greedy, processors=(("choise", ("a",)),)))


def test_the_logit_processor_works_with_speculative_decoding(tiny: Path) -> None:
    params = replace(GREEDY, ignore_eos=False, max_tokens=60, processors=(("choice", ("x" * 40, "y" * 40)),))
    with engine(tiny, "logits") as plain, engine(tiny, "logits", speculation__use="ngram") as guessing:
        expected, found = plain.generate("the", params)[0], guessing.generate("the", params)[0]
    assert found.token_ids == expected.token_ids
    assert expected.text in ("x" * 40, "y" * 40)
    assert found.usage.accepted_tokens > 5


def test_the_tokenizer_turns_text_into_bytes_and_back(tiny: Path) -> None:
    with engine(tiny, "tokenizer", tokenizer__use="bytes", bytes__first=10) as made:
        assert made.tokenize("hé") == [10 + byte for byte in "hé".encode()]
        answer = made.generate("hé", GREEDY)[0]
    text = bytes(token - 10 for token in answer.token_ids if 10 <= token < 266).decode(errors="replace")
    assert answer.text == text
    assert answer.token_ids == ids(engine(tiny), [[10 + byte for byte in "hé".encode()]])


def test_the_command_counts_tokens(tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setenv("INFENG_PLUGINS_PATHS", str(PYTHON["command"]))
    monkeypatch.setenv("INFENG_COUNT_UNIT", "ids")
    assert cli.main(["count", str(tiny), "the quick"]) == 0
    with engine(tiny) as made:
        assert capsys.readouterr().out == f"{len(made.tokenize('the quick'))} ids\n"


def renamed(tiny: Path, folder: Path) -> Path:
    shutil.copytree(tiny, folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"architectures": ["RenamedForCausalLM"], "model_type": "renamed"}
    (folder / "config.json").write_text(json.dumps(config))
    weights = load_file(folder / "model.safetensors")
    weights = {re.sub(r"^model\.", "transformer.", name): value for name, value in weights.items()}
    save_file(weights, folder / "model.safetensors")
    return folder


def test_the_family_is_run_from_its_checkpoint_and_from_a_conversion(tiny: Path, tmp_path: Path) -> None:
    model = renamed(tiny, tmp_path / "renamed")
    with pytest.raises(ModelError, match="RenamedForCausalLM"):
        engine(model)
    assert ids(engine(model, "family")) == ids(engine(tiny))
    families.added.clear()
    convert = ["convert", str(model), str(tmp_path / "native")]
    assert cli.main([*convert, "--set", f"plugins.paths={PYTHON['family']}"]) == 0
    families.added.clear()
    assert ids(engine(tmp_path / "native", "family")) == ids(engine(tiny))


def test_a_graph_with_an_unknown_op_or_name_is_an_error(tiny: Path, tmp_path: Path, monkeypatch: Any) -> None:
    from dataclasses import dataclass, replace

    from infeng_core.models.builtin_families import DecoderFamily
    from infeng_core.models.decoder import graph as plain
    from infeng_core.models.ops import Linear

    @dataclass(frozen=True)
    class Fft:
        x: str
        out: str

    for ops, words in (
        ((Fft("hidden", "hidden"),), r"Fft\(x='hidden', out='hidden'\), which backend native does not run"),
        (
            (Linear("nothing", "hidden", "hidden"),),
            "names 'nothing', which is neither a value of it",
        ),
    ):
        spoilt = lambda config, ops=ops: (made := plain(config)) and replace(made, ops=made.ops + ops)  # noqa: E731
        monkeypatch.setitem(families.added, "llama", DecoderFamily("llama", ("LlamaForCausalLM",), graph=spoilt))
        with pytest.raises(ModelError, match=f"family llama: its graph .*{words}"):
            engine(tiny)
    monkeypatch.delitem(families.added, "llama")
    spoilt = lambda config: replace(plain(config), ops=(Fft("hidden", "hidden"),))  # noqa: E731
    monkeypatch.setattr("infeng_core.api.formats.decoder_graph", spoilt)
    with pytest.raises(PluginError, match=r"plugin renamed: model family renamed: the result of graph\(\) has a"):
        engine(renamed(tiny, tmp_path / "renamed"), "family")


@pytest.mark.slow
def test_the_source_reads_a_model_from_another_kind_of_file(tiny: Path, tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "model.npz"
    texts = {name: np.array((tiny / f"{name}.json").read_text()) for name in ("config", "tokenizer")}
    np.savez(file, **texts, **load_file(tiny / "model.safetensors"))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="is a file"):
        engine(file)
    assert ids(engine(file, "source")) == ids(engine(tiny))
    assert ids(engine(file, "source")) == ids(engine(tiny))  # from the cache
    convert = ["convert", str(file), str(tmp_path / "native"), "--set", f"plugins.paths={PYTHON['source']}"]
    assert cli.main(convert) == 0
    assert ids(engine(tmp_path / "native")) == ids(engine(tiny))
    file.write_bytes(file.read_bytes()[:5000])
    with pytest.raises(ModelError, match=r"model\.npz: not a NumPy archive"):
        engine(file, "source")


def arrays(tiny: Path, folder: Path) -> Path:
    """Write a model as a folder of .npy files."""
    folder.mkdir()
    for name, values in load_file(tiny / "model.safetensors").items():
        np.save(folder / f"{name}.npy", values.astype(np.float32))
    shutil.copy(tiny / "config.json", folder / "model.json")
    shutil.copy(tiny / "tokenizer.json", folder)
    return folder


@pytest.mark.slow
def test_the_model_reader_opens_a_model_tensor_by_tensor(tiny: Path, tmp_path: Path, capsys: Any) -> None:
    folder, given = arrays(tiny, tmp_path / "arrays"), ["--set", f"plugins.paths={PYTHON['model_reader']}"]
    with pytest.raises(ModelError, match=r"has no model\.safetensors"):
        engine(folder)
    assert ids(engine(folder, "model_reader")) == ids(engine(tiny))
    assert cli.main(["convert", str(folder), str(tmp_path / "native"), *given]) == 0
    assert ids(engine(tmp_path / "native")) == ids(engine(tiny))
    capsys.readouterr()
    assert cli.main(["models", str(folder), "--json", *given]) == 0
    [said] = json.loads(capsys.readouterr().out)
    assert said["kind"] == "NumPy folder" and said["family"] == "llama" and said["has_tokenizer"]
    assert said["stored"]["float32"] >= 15 and not said["why_not"]
    np.save(folder / "model.norm.weight.npy", np.zeros(3, np.float32))
    with pytest.raises(ModelError, match=r"model\.norm\.weight\.npy: is float32 \(3,\), \(64,\) of"):
        engine(folder, "model_reader")


@pytest.mark.parametrize(
    ("method", "lie", "words"),
    [
        ("recognizes", lambda self, path: 1 / 0, r"recognizes\(\) raised ZeroDivisionError"),
        ("recognizes", lambda self, path: "yes", r"the result of recognizes\(\) is 'yes', not bool"),
        ("files", lambda self, path: [], r"the result of files\(\) is \[\], not ModelFiles"),
        ("open", lambda self, path: None, r"it has no .*"),
        ("open", lambda self, path: sys.exit(3), r"open\(\) raised SystemExit: 3"),
    ],
)
def test_a_model_reader_that_returns_wrong_values_is_named(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, lie: Any, words: str
) -> None:
    folder = arrays(tiny, tmp_path / "arrays")
    with engine(folder, "model_reader"):
        import infeng_npy
    monkeypatch.setattr(infeng_npy.NpyReader, method, lie)
    os.utime(folder / "model.norm.weight.npy", ns=(1, 1))  # another model, which is not in the cache
    with pytest.raises(PluginError, match=rf"^plugin npy: model reader npy: (the result of open\(\): )?{words}"):
        engine(folder, "model_reader")


def test_a_model_reader_whose_tensor_is_no_array_is_named(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = arrays(tiny, tmp_path / "arrays")
    with engine(folder, "model_reader"):
        import infeng_npy
    monkeypatch.setattr(infeng_npy.NpyCheckpoint, "array", lambda self, part: "floats")
    os.utime(folder / "model.norm.weight.npy", ns=(1, 1))
    with pytest.raises(PluginError, match=r"^plugin npy: model reader npy: the result of array\(\) is 'floats'"):
        engine(folder, "model_reader")


def test_a_converted_model_and_a_hugging_face_directory_ask_no_reader_of_a_plugin(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli.main(["convert", str(tiny), str(tmp_path / "native")]) == 0
    for name in [name for name in sys.modules if name.startswith("infeng_gguf")]:
        monkeypatch.delitem(sys.modules, name)
    with engine(tmp_path / "native", "model_reader"), engine(tiny, "model_reader"):
        assert "infeng_npy" not in sys.modules and "infeng_gguf" not in sys.modules


@pytest.mark.slow
def test_the_converter_unpacks_a_model_once_and_again_where_it_was_damaged(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    native, archive = convert(tiny, tmp_path / "native", FormatChoice("int8-row")).path, tmp_path / "model.tar"
    with tarfile.open(archive, "w") as written:
        written.add(native, ".")
    with engine(archive, "converter") as made:
        directory = made.model.source
        assert made.model.id == read_manifest(native, builtin_format).id and made.model.conversion_seconds == 0.0
    stamp = (directory / "manifest.yaml").stat().st_mtime_ns
    assert ids(engine(archive, "converter")) == ids(engine(native))
    assert (directory / "manifest.yaml").stat().st_mtime_ns == stamp
    (weights,) = directory.glob("*.safetensors")
    weights.write_bytes(weights.read_bytes()[:-64] + bytes(range(64)))
    assert ids(engine(archive, "converter")) == ids(engine(native))
    assert "the cached conversion is damaged and is made again" in capsys.readouterr().err
    (tmp_path / "other.tar").write_bytes(bytes(10240))
    with pytest.raises(ModelError, match=r"other\.tar: holds no engine-native model: make it again"):
        engine(tmp_path / "other.tar", "converter")
    odd = [("x", tarfile.SYMTYPE), ("x", tarfile.FIFOTYPE)]
    for name, kind in [("../x", tarfile.REGTYPE), ("/x", tarfile.REGTYPE), *odd]:
        member = tarfile.TarInfo(name)
        member.type, member.linkname = kind, "/etc/passwd"
        with tarfile.open(tmp_path / "out.tar", "w") as written:
            written.addfile(member)
        with pytest.raises(ModelError, match=r"out\.tar: has '.*x', which is no file of the directory: make it again"):
            engine(tmp_path / "out.tar", "converter")


def test_the_locator_finds_models_and_adapters_by_name(tiny: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny, tmp_path / "tiny")
    tiny_adapter.write(tmp_path / "poet", 1)
    settings = {"shelf__folder": str(tmp_path)}
    with engine("shelf://tiny", "locator", **settings) as made:  # type: ignore[arg-type]
        made.adapters.load("poet", "shelf://poet")
        answer = made.generate([Request("the quick", GREEDY, adapter="poet")])[0]
        with pytest.raises(AdapterError, match="shelf://nobody: is no adapter in"):
            made.adapters.load("other", "shelf://nobody", pin=True)
    with engine(tiny) as made:
        made.adapters.load("poet", tmp_path / "poet")
        assert made.generate([Request("the quick", GREEDY, adapter="poet")])[0].token_ids == answer.token_ids
    with pytest.raises(ModelError, match="shelf://nothing: is no model in"):
        engine("shelf://nothing", "locator", **settings)  # type: ignore[arg-type]


def test_the_adapter_reader_equals_the_peft_reader(tiny: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    module = "model.layers.0.self_attn.q_proj"
    with engine(tiny) as made:
        spec = target_modules(made.model.config).matrices[module]
    a = rng.standard_normal((4, spec.k)).astype(np.float32)
    b = rng.standard_normal((spec.part.rows, 4)).astype(np.float32)
    np.savez(tmp_path / "poet.npz", scaling=np.float32(2), **{f"{module}.a": a, f"{module}.b": b})
    peft = tmp_path / "peft"
    peft.mkdir()
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["layers.0.self_attn.q_proj"]}
    (peft / "adapter_config.json").write_text(json.dumps(config))
    names = {"lora_A": a, "lora_B": b}
    save_file(
        {f"base_model.model.{module}.{name}.weight": values for name, values in names.items()},
        peft / "adapter_model.safetensors",
    )
    request = Request("the quick", GREEDY, adapter="poet")
    with engine(tiny, "adapter_reader") as made:
        plain = made.generate("the quick", GREEDY)[0].token_ids
        made.adapters.load("poet", tmp_path / "poet.npz")
        found = made.generate([request])[0].token_ids
    with engine(tiny) as made:
        made.adapters.load("poet", peft)
        assert made.generate([request])[0].token_ids == found != plain
        with pytest.raises(AdapterError, match=r"poet\.npz: is a file"):
            made.adapters.load("other", tmp_path / "poet.npz", pin=True)


@pytest.mark.parametrize(
    ("method", "lie", "words"),
    [
        ("recognizes", lambda self, path: None, r"the result of recognizes\(\) is None, not bool"),
        ("load", lambda self, *given: {}, r"the result of load\(\) is \{\}, not PackedAdapter"),
        ("read", lambda self, *given: 1 / 0, r"load\(\) raised ZeroDivisionError"),
    ],
)
def test_a_wrong_adapter_reader_is_named_and_the_engine_goes_on(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, lie: Any, words: str
) -> None:
    (tmp_path / "poet.npz").write_bytes(b"")
    with engine(tiny, "adapter_reader") as made:
        with pytest.raises(AdapterError, match="not a NumPy archive"):
            made.adapters.load("poet", tmp_path / "poet.npz", pin=True)
        import infeng_npzlora

        monkeypatch.setattr(infeng_npzlora.NpzReader, method, lie)
        with pytest.raises(PluginError, match=rf"plugin npzlora: adapter reader npzlora: {words}"):
            made.adapters.load("poet", tmp_path / "poet.npz", pin=True)
        assert len(made.generate("the quick", GREEDY)[0].token_ids) == 24


def test_the_backend_sizes_its_memory_and_opens_no_kernel_library(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_native, "open_library", lambda *_: pytest.fail("a kernel library was opened"))
    huge = 1 << 20  # of which native would take 128 MB
    with engine(tiny, "backend", backend__use="bigram", kv_cache__memory=huge, model__format="f32") as made:
        assert made.limits.kv_blocks == huge
        assert made.selector is None
        answer = made.generate([[5, 6, 7]], GREEDY)[0]
    embed = load_file(tiny / "model.safetensors")["model.embed_tokens.weight"]
    expected = [7]
    for _ in range(24):
        expected.append(int(np.argmax(embed[expected[-1]] @ embed.T)))
    assert list(answer.token_ids) == expected[1:]


def test_the_numpy_backend_opens_no_kernel_library(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("infeng_numpy", reason="the numpy wheel is not installed")
    monkeypatch.setattr(_native, "open_library", lambda *_: pytest.fail("a kernel library was opened"))
    assert len(ids(engine(tiny, backend__use="numpy"))) == 24


def test_a_wrong_setting_of_an_example_is_named() -> None:
    with pytest.raises(ManifestError, match=r"again\.window: 65 is out of range|argument again\.window: 65"):
        load_config(overrides={"plugins.paths": str(PYTHON["drafter"]), "again.window": 65})


def squared_errors(converted: Path, source: Path) -> dict[str, float]:
    """Return the sum of (stored - given)^2 of each matrix."""
    model = load(converted, load_config())
    given = load_file(source / "model.safetensors")
    matrices = {name: values.astype(np.float64) for name, values in given.items() if values.ndim == 2}
    return {name: float(((model.matrix(name) - values) ** 2).sum()) for name, values in matrices.items()}


@pytest.mark.parametrize("format", ["int4-g64", "int4-g32", "int8-row"])
def test_the_quantizer_errs_less_on_every_matrix_and_its_model_runs_without_it(
    tiny: Path, tmp_path: Path, capsys: Any, format: str
) -> None:
    convert = ["convert", str(tiny), "--format", format]
    ours = ["--quantizer", "clip", "--set", f"plugins.paths={PYTHON['quantizer']}", "--set", "clip.ranges=64"]
    assert cli.main([*convert, str(tmp_path / "nearest")]) == 0
    assert cli.main([*convert, str(tmp_path / "clip"), *ours]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.endswith("quantizer nearest") and second.endswith("quantizer clip 0.1.0")
    plain, found = (squared_errors(tmp_path / name, tiny) for name in ("nearest", "clip"))
    assert len(found) == 15 and all(found[name] < plain[name] for name in found)
    assert sum(found.values()) < 0.995 * sum(plain.values())
    record = yaml.safe_load((tmp_path / "clip" / "manifest.yaml").read_text())["quantizer"]
    assert record == {"name": "clip", "plugin": "clip", "version": "0.1.0", "settings": {"ranges": 64}}
    tokens = ids(engine(tmp_path / "clip"))
    assert len(tokens) == 24
    settings = {"model__format": format, "model__quantizer": "clip", "clip__ranges": 64}
    assert ids(engine(tiny, "quantizer", **settings)) == tokens  # converted on the fly


def test_the_calibrator_passes_input_norms_of_linear_ops_to_the_quantizer(tiny: Path, tmp_path: Path) -> None:
    paths = f"plugins.paths={PYTHON['calibrator']},{PYTHON['quantizer']}"
    ours = ["--quantizer", "clip", "--set", paths, "--set", "plugins.disable=calibrate"]
    codes: dict[str, bytes] = {}
    for name, more in (("plain", []), ("told", ["--calibrate", "auto"])):
        asked = ["convert", str(tiny), str(tmp_path / name), "--format", "int4-g64", *ours, *more]
        assert cli.main(asked) == 0
        model = load(tmp_path / name, load_config())
        codes |= {
            f"{name} {tensor}": np.frombuffer(one.buffer, np.uint8, one.nbytes, one.offset).tobytes()
            for tensor, one in model.tensors.items()
        }
    record = yaml.safe_load((tmp_path / "told" / "manifest.yaml").read_text())["quantizer"]
    assert record["settings"].keys() == {"ranges", "text", "tokens"}
    changed = {key.split()[1] for key in codes if codes[f"plain {key.split()[1]}"] != codes[f"told {key.split()[1]}"]}
    assert {name.rpartition(".")[2] for name in changed} == {"qkv_proj", "gate_up_proj"}
    assert cli.main(["convert", str(tiny), str(tmp_path / "text"), *ours, "--calibrate", "text.txt"]) == 2


def test_the_quantizer_errs_less_on_a_trained_model() -> None:
    source = pytest.importorskip("infeng_demo", reason="the demo wheel is not installed").model_dir()
    plugins = Plugins.discover(load_config(overrides={"plugins.paths": str(PYTHON["quantizer"])}))
    floats = load(source, load_config(overrides={"model.format": "f32"}))
    rows = floats.matrix("model.layers.0.mlp.down_proj.weight")
    target = QuantTarget("down", "layers.0.down_proj", "int4-g64", Grid(64, -8, 7, np.dtype("float16")))
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((4 * rows.shape[1], rows.shape[1])) * np.exp2(rng.integers(-3, 4, rows.shape[1]))
    calibrated = replace(target, statistic=inputs.T @ inputs / len(inputs))

    def errors(name: str, asked: QuantTarget) -> tuple[float, float]:
        """Return the squared error of the weights, and of what comes out for the inputs."""
        made = quantizer_of(name, plugins).quantize(rows.copy(), asked, "down")
        assert made is not None
        wrong = np.repeat(made.scales, 64, 1) * made.codes - rows
        return float((wrong**2).sum()), float(((inputs @ wrong.T) ** 2).sum())

    nearest, plain, weighed = errors("nearest", target), errors("clip", target), errors("clip", calibrated)
    assert plain[0] < 0.995 * nearest[0]
    assert weighed[1] < 0.9 * min(nearest[1], plain[1])


def test_the_quantizer_leaves_scales_beyond_fp16_to_the_core(tiny: Path, tmp_path: Path) -> None:
    source = Path(shutil.copytree(tiny, tmp_path / "large"))
    weights = load_file(source / "model.safetensors")
    weights["model.layers.1.mlp.up_proj.weight"][3, 5] = 1e6
    save_file(weights, source / "model.safetensors")
    with pytest.raises(
        ModelError, match=r"up_proj\.weight: does not fit int4-g64 \(row 3, .*: store it in another format"
    ):
        engine(source, "quantizer", model__quantizer="clip", model__format="int4-g64")


@pytest.mark.slow
def test_the_wheels_build_install_and_are_used(tiny: Path, tmp_path: Path) -> None:
    sources = [shutil.copytree(path.parents[1], tmp_path / name) for name, path in PYTHON.items()]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--target", str(tmp_path / "site"), *map(str, sources)], check=True)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}

    def infeng(*words: object) -> str:
        code = "import sys; from infeng_core.cli import main; sys.exit(main(sys.argv[1:]))"
        command = [sys.executable, "-P", "-c", code, *map(str, words)]
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment, cwd=tmp_path)
        return done.stdout

    listed = {item["name"]: item for item in json.loads(infeng("plugins", "list", "--json"))}
    for path in PYTHON.values():
        assert listed[path.parent.name.removeprefix("infeng_")]["state"] == "ready"
    run = ("-p", "the", "-n", "8", "--temperature", "0", "--set")
    plain = infeng("run", tiny, *run, "threads.count=1")
    assert infeng("run", tiny, *run, "speculation.use=again") == plain
    assert infeng("run", renamed(tiny, tmp_path / "renamed-model"), *run, "threads.count=1") == plain
    assert infeng("run", tiny, *run, "tokenizer.use=bytes", "--json")
    four = ("--format", "int4-g64")  # which it rounds; the default has sub-scales
    assert infeng("convert", tiny, "clipped", "--quantizer", "clip", *four).endswith("quantizer clip 0.1.0\n")
    assert infeng("run", "clipped", *run, "threads.count=1")
    told = infeng(
        "convert",
        tiny,
        "told",
        "--quantizer",
        "clip",
        *four,
        "--calibrate",
        "auto",
        "--set",
        "plugins.disable=calibrate",
    )
    assert told.endswith("quantizer clip 0.1.0\n")
    assert infeng("run", tiny, *run, "backend.use=bigram", "--json")
    assert infeng("run", tiny, *run, "backend.use=aside", "--set", "threads.count=1") == plain
    assert infeng("count", tiny, "the").endswith(" tokens\n")
    code = (
        "import sys; from infeng_core import Engine, SamplingParams\n"
        "with Engine(sys.argv[1]) as engine:\n"
        "    print(engine.generate('x', SamplingParams(processors=(('choice', ('lazy', 'quick')),)))[0].text)"
    )
    command = [sys.executable, "-P", "-c", code, str(tiny)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.stdout in ("lazy\n", "quick\n")


def test_plugin_options_of_run_select_processors_and_replace_answers(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("INFENG_PLUGINS_PATHS", str(PYTHON["run_options"]))
    words = ["run", str(tiny), "-p", "the quick", "-n", "4", "--ignore-eos", "-t", "1", "--json"]
    assert cli.main([*words, "--only-tokens", "5,6"]) == 0
    assert set(json.loads(capsys.readouterr().out)["token_ids"]) <= {5, 6}
    assert cli.main([*words, "--only-tokens", "five"]) == 2
    assert "these are no token ids: give numbers" in capsys.readouterr().err
    assert cli.main(["run", "nowhere", "one", "two", "--elsewhere"]) == 0
    assert capsys.readouterr().out == "> one\n> two\n"
    for name, shown in (("run", True), ("chat", True), ("convert", False)):
        with pytest.raises(SystemExit):
            cli.main([name, "--help"])
        assert ("--only-tokens IDS" in capsys.readouterr().out) is shown
