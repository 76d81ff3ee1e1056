"""An activated adapter over gRPC finds what the base has read, and its vectors are those of HTTP."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from infeng_demo import adapter_dir
from rpc_parts import Client
from serve_parts import running
from smg_grpc_proto import vllm_engine_pb2 as pb

INVOCATION = [61, 62, 63]
TALK = [5 + i % 40 for i in range(100)]


def test_a_chain_over_grpc_reads_the_conversation_once(tmp_path: Path):
    path = Path(shutil.copytree(adapter_dir("python"), tmp_path / "judge")) / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"alora_invocation_tokens": INVOCATION}))
    with running(lora_roots=(str(tmp_path),), grpc_port=0) as served, Client(served) as client:
        assert served.ask("/v1/load_lora_adapter", {"lora_name": "judge", "lora_path": "judge"}).status == 200
        calls = [(TALK, "base"), ([*TALK, *INVOCATION], "judge"), ([*TALK, 7], "base"), (TALK, "judge")]
        found = []
        for ids, model in calls:
            request = pb.GenerateRequest(tokenized=pb.TokenizedInput(input_ids=ids))
            request.sampling_params.CopyFrom(pb.SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True))
            found.append(client.complete(request, model=model)[0])
        assert [one.cached_tokens for one in found] == [0, 96, 96, 96]
        assert list(found[3].output_ids) == list(found[0].output_ids), "it is not invoked"
        body = {"prompt": [*TALK, *INVOCATION], "max_tokens": 6, "temperature": 0, "ignore_eos": True}
        text = served.ask("/v1/completions", {**body, "model": "judge"}).json["choices"][0]["text"]
        assert served.engine.tokenizer.decode(found[1].output_ids) == text
        for ids, model in calls:
            request = pb.EmbedRequest(tokenized=pb.TokenizedInput(input_ids=ids))
            vector = client.stub.Embed(request, metadata=[("model", model)]).embedding
            expected = served.ask("/v1/embeddings", {"input": ids, "model": model}).json["data"][0]["embedding"]
            assert list(vector) == expected
