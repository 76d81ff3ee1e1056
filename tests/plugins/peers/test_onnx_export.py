"""Exports for ONNX Runtime GenAI: places of adapters, and the tokens of Hugging Face's own models."""

import json
import subprocess
from pathlib import Path

import pytest
from infeng_bench.load.requests import Job
from infeng_bench.models import adapters, synthetic
from infeng_peers import known, onnx_export, serve
from infeng_peers.environment import Environment
from infeng_peers.process import EngineProcess

PEER = known.peer("onnxruntime_genai")
PLACE = Environment(PEER)
MISSING, PYTHON, TOOLS = PLACE.missing(), PLACE.python, PLACE.tools  # of the user's cache: the tests have their own

GREEDY = """
import json, sys
import peft, torch, transformers
model, adapter, prompts = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
weights = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
if adapter:
    weights = peft.PeftModel.from_pretrained(weights, adapter)
    for module in weights.modules():
        if hasattr(module, "lora_A"):
            module.scaling["default"] *= float(sys.argv[4])
for ids in prompts:
    length = len(ids)
    with torch.inference_mode():
        for _ in range(8):
            ids.append(int(weights(torch.tensor([ids])).logits[0, -1].argmax()))
    print(json.dumps(ids[length:]))
"""


@pytest.mark.parametrize(
    ("tensor", "place"),
    [
        ("model.layers.3.self_attn.q_proj.lora_A.weight", "model.layers.3.attn.q_proj.lora_A.weight"),
        ("model.layers.11.mlp.down_proj.lora_B.weight", "model.layers.11.mlp.down_proj.lora_B.weight"),
    ],
)
def test_a_tensor_of_peft_has_its_place_in_the_graph(tensor: str, place: str) -> None:
    assert onnx_export.place(f"base_model.model.{tensor}") == place


@pytest.mark.parametrize(
    "tensor",
    [
        "lm_head.lora_A.weight",
        "model.embed_tokens.lora_embedding_A",
        "model.layers.0.self_attn.q_proj.lora_magnitude_vector",
        "model.layers.0.mlp.q_proj.lora_A.weight",
        "model.layers.0.self_attn.gate_proj.lora_A.weight",
    ],
)
def test_a_tensor_without_a_place_is_refused_by_name(tensor: str) -> None:
    with pytest.raises(ValueError, match=tensor):
        onnx_export.place(f"base_model.model.{tensor}")


@pytest.mark.slow
def test_the_exported_model_answers_as_hugging_faces_with_and_without_adapters(
    wide_config: Path, tmp_path: Path
) -> None:
    if MISSING:
        pytest.skip(f"asks the peer onnxruntime_genai, which is {MISSING}")
    source, prompts = synthetic.hf_directory(wide_config), [list(range(5, 25)), list(range(40, 60))]
    held = {f"a{i}": adapters.peft_directory(wide_config, 4 + 4 * i, "all" if i else "qv", i) for i in (0, 1)}

    scales = {"a0": 1.0, "a1": 2.5}

    def greedy(name: str | None) -> list[list[int]]:
        given = [str(source), str(held[name] if name else ""), json.dumps(prompts), str(scales.get(name or "", 1.0))]
        said = subprocess.run([PYTHON, "-P", "-c", GREEDY, *given], check=True, capture_output=True, text=True).stdout
        return [json.loads(line) for line in said.splitlines()]

    expected = {name: greedy(name) for name in (None, *held)}
    assert len({str(ids) for ids in expected.values()}) == 3, "adapters change the answers"
    for command in PEER.export_commands(TOOLS, source, tmp_path, "fp32"):
        subprocess.run(command, check=True, capture_output=True)
    exporter = [PYTHON, "-P", onnx_export.__file__, "adapter"]
    for name, path in held.items():
        subprocess.run([*exporter, path, tmp_path / f"{name}.onnx_adapter"], check=True, capture_output=True)
    for option in ("plain", "lora"):
        command = [str(PYTHON), "-P", serve.__file__, str(PEER.path), str(tmp_path), "--threads", "1"]
        engine = EngineProcess("genai", [*command, "--set", f"without={option}"], tmp_path / "log", 300)
        try:
            engine.ready()
            files = {name: str(tmp_path / f"{name}.onnx_adapter") for name in held}
            wanted = [{"name": name, "path": path, "scale": scales[name]} for name, path in files.items()]
            for _ in range(2):  # the second time they take the place of the first ones
                engine.adapters(wanted)
            assert engine.adapter_bytes["a1"] > engine.adapter_bytes["a0"] > 0
            jobs = [Job(0.0, ids, 8, user) for user in (None, "a0", "a1") for ids in prompts]
            replies = engine.serve(jobs, 4).replies
        finally:
            engine.close()
        assert [reply.ids for reply in replies] == [ids for user in (None, "a0", "a1") for ids in expected[user]]
