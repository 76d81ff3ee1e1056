"""Unmodified clients do their work through a server: what they get is what HTTP alone gets."""

from __future__ import annotations

import csv
import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("infeng_serve", reason="the server wheel is not installed")
pytest.importorskip("infeng_demo", reason="the demo wheel is not installed")

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent


def check(served: Any, facts: dict[str, Any], has: str) -> None:
    """Hold the facts that a client's script printed to what the server says; has: what has to be among them."""
    same = {"complete": served.complete, "stream": served.complete, "chat": served.chat, "chat stream": served.chat,
            "chat events": served.chat, "chat logprobs": served.chat, "logprob tokens": served.complete,
            "response": served.chat, "response stream": served.chat}  # fmt: skip
    for name in set(has.split(", ")):
        value = facts[name]
        if name in same:
            assert value == same[name](), name
        elif name in ("tool", "tool stream", "json"):
            person = value if name == "json" else value[1]
            assert name == "json" or value[0] == "register"
            assert person.keys() <= {"name", "age"}
            assert isinstance(person["age"], int)
        elif name == "embedding":
            assert value == ([2, 1, True] if served.has("/v1/embeddings") else None)


PARTS = "complete, stream, chat, chat stream, chat events, chat logprobs, json, tool, tool stream, response, embedding"


@pytest.mark.parametrize("version", ["2", "3"])
def test_openai_python_works_with_the_server(served: Any, python_with: Callable[..., Path], version: str):
    here = importlib.util.find_spec("openai") and importlib.metadata.version("openai").startswith(f"{version}.")
    python = sys.executable if here else python_with(f"openai{version}", f"openai>={version},<{int(version) + 1}")
    facts = served.facts(python, HERE / "openai_python.py")
    assert facts["version"].startswith(f"{version}.")
    check(served, facts, f"{PARTS}, logprob tokens, response stream")
    assert facts["models"] == ["demo", "bard"]
    assert facts["logprobs"] == [24, 2]
    assert facts["usage"]["completion_tokens"] == facts["stream usage"]["completion_tokens"] == 24
    assert facts["adapter"] == served.complete("bard") != facts["complete"]
    assert len(set(facts["choices"])) == 3
    assert facts["response last"] == "response.incomplete"  # as 24 tokens were not enough
    assert facts["unknown model"] == [404, "model", True]
    assert facts["wrong value"] == [400, "temperature", True]
    assert facts["async"] == [facts["complete"]] * 8


def test_openai_node_works_with_the_server(served: Any, node_with: Callable[..., Path]):
    folder = node_with("openai-node", "openai")
    facts = served.facts("node", folder / "openai_node.mjs", cwd=folder)
    check(served, facts, PARTS)
    assert facts["models"] == ["demo", "bard"]
    assert facts["adapter"] == served.complete("bard")
    assert facts["stream usage"]["completion_tokens"] == 24
    assert facts["unknown model"] == [404, True]


def test_the_ai_sdk_works_with_the_server(served: Any, node_with: Callable[..., Path]):
    folder = node_with("ai-sdk", "ai", "@ai-sdk/openai-compatible")
    facts = served.facts("node", folder / "ai_sdk.mjs", cwd=folder)
    check(served, facts, "chat, chat stream, json, tool, tool stream")
    assert facts["adapter"] == served.chat("bard")
    written = {"prompt": f"user:\n{served.prompt}\n\nassistant:\n", "stop": ["\nuser:"]}  # a template of its own
    answer = served.post("/v1/completions", **written, max_tokens=24, temperature=0)
    assert facts["complete"] == answer["choices"][0]["text"]
    assert facts["stream usage"]["outputTokens"] == 24


def test_langchain_works_with_the_server(served: Any, python_with: Callable[..., Path]):
    facts = served.facts(python_with("langchain", "langchain-openai"), HERE / "langchain_client.py")
    check(served, facts, "complete, stream, chat, chat stream, chat logprobs, json, tool, tool stream, embedding")
    assert facts["adapter"] == served.complete("bard")
    assert facts["batch"] == [facts["complete"]] * 3
    assert facts["stream usage"]["output_tokens"] == 24


def test_llama_index_works_with_the_server(served: Any, python_with: Callable[..., Path]):
    python = python_with("llama-index", "llama-index-llms-openai-like")
    facts = served.facts(python, HERE / "llama_index_client.py")
    check(served, facts, "complete, stream, chat, chat stream, tool")
    assert facts["adapter"] == served.complete("bard")
    assert facts["async"] == facts["chat"]


def test_locust_works_with_the_server(served: Any, python_with: Callable[..., Path], tmp_path: Path):
    python = python_with("locust", "locust")
    command = [python, "-m", "locust", "-f", HERE / "locustfile.py", "-H", served.url, "--headless", "--only-summary",
               "-u", "4", "-r", "4", "-t", "6s", "--csv", tmp_path / "found", "--exit-code-on-error", "1"]  # fmt: skip
    environment = os.environ | {"MODELS": f"{served.model},{served.adapter}"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {row["Name"]: row for row in csv.DictReader((tmp_path / "found_stats.csv").open())}
    assert int(rows["/v1/completions"]["Request Count"]) >= 8
    assert int(rows["/v1/chat/completions"]["Request Count"]) >= 2
    assert int(rows["Aggregated"]["Failure Count"]) == 0


TASK = """
task: demo_{kind}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: {output}
doc_to_text: "{{{{question}}}}"
{rest}
metadata: {{version: 1}}
"""
CHOICES = """doc_to_choice: ["dog", "castle", "7"]
doc_to_target: 1
metric_list: [{metric: acc}]
"""
UNTIL = """doc_to_target: "x"
generation_kwargs: {until: ["\\n"], max_gen_toks: 12, do_sample: false, temperature: 0}
metric_list: [{metric: exact_match}]
"""


@pytest.mark.nightly
def test_lm_eval_works_with_the_server(served: Any, python_with: Callable[..., Path], tmp_path: Path):
    from infeng_demo import model_dir

    python = python_with("lm-eval", "lm-eval[api]", "transformers")
    prompts = ["Once upon a time, there was a king who lived in a", "The little girl had a"]
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps({"question": prompt}) + "\n" for prompt in prompts))
    for kind, output, rest in (("choice", "multiple_choice", CHOICES), ("text", "generate_until", UNTIL)):
        task = TASK.format(kind=kind, data=data, output=output, rest=rest)
        (tmp_path / f"{kind}.yaml").write_text(task)
    arguments = f"model={served.model},base_url={served.url}/v1/completions,tokenizer={model_dir()},num_concurrent=2"
    command = [python, "-m", "lm_eval", "--model", "local-completions", "--model_args", arguments,
               "--tasks", "demo_choice,demo_text", "--include_path", tmp_path, "--limit", "2", "--log_samples",
               "--output_path", tmp_path / "found"]  # fmt: skip
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (samples,) = (tmp_path / "found").rglob("samples_demo_choice*.jsonl")
    scores = [float(response[0][0]) for line in samples.open() for response in json.loads(line)["resps"]]
    assert len(scores) == 6
    assert scores == pytest.approx([score for prompt in prompts for score in expected(served, prompt)], abs=1e-3)


def expected(served: Any, prompt: str) -> list[float]:
    """Return the log-likelihood of each choice behind a prompt: of ids, without a beginning-of-text token."""

    def ids(text: str) -> list[int]:
        return list(served.post("/tokenize", prompt=text, add_special_tokens=False)["tokens"])

    scores = []
    for choice in (" dog", " castle", " 7"):
        body = {"prompt": ids(prompt + choice), "max_tokens": 1, "temperature": 0, "echo": True, "logprobs": 1}
        found = served.post("/v1/completions", **body)["choices"][0]["logprobs"]["token_logprobs"]
        scores.append(sum(found[len(ids(prompt)) : -1]))
    return scores
