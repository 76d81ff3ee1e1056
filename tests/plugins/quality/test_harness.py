"""The model of lm-evaluation-harness: its logic on a stand-in base class, and the harness itself in an environment."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("infeng_quality", reason="the quality wheel is not installed")
pytest.importorskip("infeng_demo", reason="the demo wheel is not installed")

from infeng_demo import model_dir
from infeng_quality import harness
from infeng_quality.harness import Answers, model_class, parameters, rolled

from infeng_core.api import Engine, Request, RequestError, UsageError

CONTEXT = "Once upon a time, there was a"


class StandIn:
    """The harness's LM, as far as it matters."""

    def __init__(self) -> None:
        self.known: list[tuple[str, tuple[Any, ...], Any]] = []
        self.cache_hook = SimpleNamespace(add_partial=lambda *known: self.known.append(known))


@pytest.fixture(scope="module")
def answers() -> Iterator[Answers]:
    settings = {"threads.count": 1, "kv_cache.dtype": "f32"}
    with Engine(model_dir(), format="f32", overrides=settings) as engine:
        yield Answers(engine)


@pytest.mark.parametrize(("tokens", "window"), [(10, 4), (11, 4), (4, 4), (5, 4), (2, 4), (3, 2), (100, 7)])
def test_every_token_but_the_first_is_predicted_once_in_full_windows(tokens: int, window: int) -> None:
    parts = list(rolled(tokens, window))
    assert [at for _, begin, end in parts for at in range(begin, end)] == list(range(1, tokens))
    assert all(first < begin and end - first <= window for first, begin, end in parts)
    assert all(end - first == min(window, tokens) for first, _, end in parts)


def test_a_single_token_has_no_rolling_likelihood() -> None:
    assert list(rolled(1, 4)) == []


def test_likelihoods_and_greedy_flags_agree_with_the_engine(answers: Answers) -> None:
    written = answers.generate([(CONTEXT, {"until": ["."], "max_gen_toks": 6})])[0]
    value, is_greedy = answers.loglikelihood(CONTEXT, written)
    assert is_greedy
    expected = sum(one.logprob for one in answers.engine.score(CONTEXT, written))
    assert value == pytest.approx(expected, rel=1e-12)
    worse, is_greedy = answers.loglikelihood(CONTEXT, " seventeen")
    assert not is_greedy
    assert worse < value


def test_trailing_spaces_of_a_context_belong_to_the_continuation(answers: Answers) -> None:
    assert answers.loglikelihood(f"{CONTEXT} ", "little") == answers.loglikelihood(CONTEXT, " little")


def test_a_continuation_without_context_begins_a_text(answers: Answers) -> None:
    ids = answers.engine.tokenize("Once upon a time")
    expected = sum(one.logprob for one in answers.engine.score(ids[:1], ids[1:]))
    assert answers.loglikelihood("", "Once upon a time")[0] == pytest.approx(expected, rel=1e-12)
    assert answers.rolling("Once upon a time") == pytest.approx(expected, rel=1e-12)


def test_a_text_that_is_too_long_keeps_its_end(answers: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "context", 16)
    ids = answers.engine.tokenize("word " * 40 + CONTEXT)
    [_, *kept] = [None, *ids[-15:]]
    expected = answers.engine.score(kept[:-2], kept[-2:])
    assert answers.read(ids, len(ids) - 2)[0] == pytest.approx(sum(one.logprob for one in expected), rel=1e-12)
    with pytest.raises(RequestError, match="fills the context"):
        answers.read(ids, 3)
    assert math.isfinite(answers.rolling("word " * 40))


def test_a_long_answer_leaves_the_question_half_of_the_context(
    answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "context", 64)
    asked: list[Request] = []
    monkeypatch.setattr(answers.engine, "generate", lambda requests: asked.extend(requests) or [])
    question = "A question of some words that a task asks with more room for the answer than there is. " * 3
    for text, most, kept in ((question, 2048, 32), (question, 16, 48), ("Two words", 2048, 0)):
        asked.clear()
        answers.generate([(text, {"max_gen_toks": most})])
        ids = answers.engine.tokenizer.encode([text])[0]
        assert list(asked[0].prompt) == (ids[:1] + ids[1 - kept :] if kept else ids)


def test_generation_follows_the_settings_of_the_harness() -> None:
    given = parameters({"until": ["\n", ""], "max_gen_toks": 12, "do_sample": False, "temperature": 0.7})
    assert (given.temperature, given.max_tokens, given.stop) == (0.0, 12, ("\n",))
    sampled = parameters({"until": "x", "do_sample": True, "temperature": 0.7, "top_p": 0.9})
    assert (sampled.temperature, sampled.top_p, sampled.stop, sampled.max_tokens) == (0.7, 0.9, ("x",), 256)


def test_the_class_answers_instances_and_fills_the_harnesss_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[tuple[str, dict[str, Any]]] = []

    def fake(pretrained: str, **settings: Any) -> Any:
        opened.append((pretrained, settings))
        return SimpleNamespace(limits=SimpleNamespace(context=64))

    monkeypatch.setattr(harness, "opened", fake)
    monkeypatch.setattr(Answers, "loglikelihood", lambda _, context, text: (-float(len(text)), context == ""))
    monkeypatch.setattr(Answers, "generate", lambda _, prompts: [f"{text}!" for text, _ in prompts])
    made = model_class(StandIn)(pretrained="DIR", format="int8-row", batch_size=1, device="cpu")
    assert opened == [("DIR", {"format": "int8-row"})]
    asked = [SimpleNamespace(args=("", "ab")), SimpleNamespace(args=("x", "c"))]
    assert made.loglikelihood(asked) == [(-2.0, True), (-1.0, False)]
    assert made.known == [("loglikelihood", ("", "ab"), (-2.0, True)), ("loglikelihood", ("x", "c"), (-1.0, False))]
    assert made.generate_until([SimpleNamespace(args=("hi", {}))]) == ["hi!"]
    with pytest.raises(UsageError, match="no model is named"):
        model_class(StandIn)()


def test_the_error_without_the_harness_names_the_package_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    monkeypatch.setitem(sys.modules, "lm_eval.api.model", None)
    with pytest.raises(UsageError, match=r"infeng-quality\[lm-eval\]"):
        harness.register()
    assert harness.main() == 2


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
KINDS = {
    "choice": (
        "multiple_choice",
        'doc_to_choice: ["dog", "castle", "7"]\ndoc_to_target: 1\nmetric_list: [{metric: acc}]',
    ),
    "text": (
        "generate_until",
        'doc_to_target: "x"\ngeneration_kwargs: {until: ["\\n"], max_gen_toks: 12, do_sample: false}\n'
        "metric_list: [{metric: exact_match}]",
    ),
    "rolling": ("loglikelihood_rolling", 'doc_to_target: "{{question}}"\nmetric_list: [{metric: word_perplexity}]'),
}


@pytest.mark.nightly
def test_the_harness_itself_runs_the_model(answers: Answers, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True, timeout=300)
    python = tmp_path / "venv/bin/python"
    subprocess.run([python, "-m", "pip", "install", "-q", "lm-eval>=0.4.5"], check=True, timeout=1200)
    site = Path(harness.__file__).parents[1]
    prompts = ["Once upon a time, there was a king who lived in a", "The little girl had a"]
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps({"question": prompt}) + "\n" for prompt in prompts))
    for kind, (output, rest) in KINDS.items():
        text = TASK.format(kind=kind, data=data, output=output, rest=rest)
        (tmp_path / f"{kind}.yaml").write_text(
            text if kind != "rolling" else text.replace('"{{question}}"\n', '""\n', 1)
        )
    arguments = f"pretrained={model_dir()},format=f32,kv=f32,threads=1"
    code = f"import sys; sys.path.append({str(site)!r}); from infeng_quality.harness import main; sys.exit(main())"
    command = [python, "-c", code, "--model", "infeng", "--model_args", arguments,
               "--tasks", ",".join(f"demo_{kind}" for kind in KINDS), "--include_path", tmp_path, "--limit", "2",
               "--log_samples", "--output_path", tmp_path / "found"]  # fmt: skip
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    samples = {}
    for kind in KINDS:
        (path,) = (tmp_path / "found").rglob(f"samples_demo_{kind}*.jsonl")
        samples[kind] = [json.loads(line)["resps"] for line in path.open()]
    for prompt, responses in zip(prompts, samples["choice"], strict=True):
        for word, response in zip(("dog", "castle", "7"), responses, strict=True):
            assert float(response[0][0]) == pytest.approx(answers.loglikelihood(prompt, f" {word}")[0], abs=1e-6)
    for prompt, responses in zip(prompts, samples["text"], strict=True):
        assert responses[0][0] == answers.generate([(prompt, {"until": ["\n"], "max_gen_toks": 12})])[0]
    for prompt, responses in zip(prompts, samples["rolling"], strict=True):
        assert float(responses[0][0]) == pytest.approx(answers.rolling(prompt), abs=1e-6)
