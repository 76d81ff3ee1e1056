"""A family whose graph is wrong is an error that names the family or the model, and the engine goes on.

The graph of a tiny Llama has one thing wrong in it at a time. None ends the process, and no kernel gets the blame.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import tiny_model

from infeng_core import Engine, SamplingParams
from infeng_core.backends.interface import Backend, Executable
from infeng_core.errors import KernelError, ModelError
from infeng_core.models.decoder import graph as decoder_graph
from infeng_core.models.families import added, families
from infeng_core.models.ops import (
    Activate,
    Apply,
    Attention,
    Bias,
    Combine,
    Embed,
    ExpertLinear,
    GatedMul,
    Graph,
    KvAppend,
    Linear,
    Op,
    Residual,
    RmsNorm,
    Rope,
    RowOp,
    Scale,
    SiluMul,
    Value,
)
from infeng_core.plug.hookspecs import BACKENDS

Change = Callable[[Graph], Graph]


@dataclass(frozen=True)
class Fft:
    """An op, and a step, that no backend knows."""

    x: str = "hidden"
    out: str = "hidden"


def first(kind: type[Op], **fields: Any) -> Change:
    """Return a change of the first op of a kind."""

    def change(graph: Graph) -> Graph:
        [index, *_] = (i for i, op in enumerate(graph.ops) if isinstance(op, kind))
        op = replace(graph.ops[index], **fields)
        return replace(graph, ops=(*graph.ops[:index], op, *graph.ops[index + 1 :]))

    return change


def last(kind: type[Op], **fields: Any) -> Change:
    """Return a change of the last op of a kind."""

    def change(graph: Graph) -> Graph:
        *_, index = (i for i, op in enumerate(graph.ops) if isinstance(op, kind))
        op = replace(graph.ops[index], **fields)
        return replace(graph, ops=(*graph.ops[:index], op, *graph.ops[index + 1 :]))

    return change


def value(name: str, **fields: Any) -> Change:
    return lambda graph: replace(graph, values={**graph.values, name: replace(graph.values[name], **fields)})


def before_head(*ops: Any, **values: Value) -> Change:
    """Return a change that adds ops behind the last layer."""
    return lambda graph: replace(graph, ops=(*graph.ops[:-2], *ops, *graph.ops[-2:]), values={**graph.values, **values})


def without(kind: type[Op]) -> Change:
    return lambda graph: replace(graph, ops=tuple(op for op in graph.ops if not isinstance(op, kind)))


WRONG: dict[str, tuple[Change, str]] = {
    "a weight that the model lacks": (first(Linear, weight="layers.0.nothing"), "names 'layers.0.nothing', which is"),
    "a weight that is a vector": (first(Linear, weight="norm"), "names 'norm', which is neither"),
    "a vector that the model lacks": (first(RmsNorm, weight="layers.7.mlp_norm"), "names 'layers.7.mlp_norm'"),
    "a vector that is a weight": (first(RmsNorm, weight="embed"), "names 'embed'"),
    "an embedding that is a vector": (first(Embed, weight="norm"), "names 'norm'"),
    "a value that is read and does not exist": (first(Linear, x="nothing"), "reads 'nothing' before an op writes it"),
    "a value that is written and does not exist": (first(Linear, out="nothing"), "reads 'qkv' before an op writes it"),
    "a value that nothing has written": (without(Embed), "reads 'hidden' before an op writes it"),
    "no op": (lambda graph: replace(graph, ops=()), "writes no logits"),
    "no values": (lambda graph: replace(graph, values={}), "names 'hidden', which"),
    "logits that are no value": (lambda graph: replace(graph, logits="nothing"), "writes no logits"),
    "logits that nothing writes": (lambda graph: replace(graph, ops=graph.ops[:-1]), "writes no logits"),
    "logits of every row": (value("logits", sampled=False), "the op works on sampled rows"),
    "logits that are too narrow": (value("logits", columns=16), "has 16 columns, the op needs 320"),
    "a value of no columns": (value("gated", columns=0), "a buffer of 0 columns is not possible"),
    "a value of -64 columns": (value("gated", columns=-64), "a buffer of -64 columns is not possible"),
    "a value of 2**40 columns": (value("gated", columns=2**40), "a buffer of 1099511627776 columns is not possible"),
    "a value that is too narrow for a linear": (value("qkv", columns=64), "has 64 columns, the op needs 128"),
    "a value that is too wide for a linear": (value("attended", columns=128), "has 128 columns, the op needs 64"),
    "a norm over another width": (value("normed", columns=128), "has 128 columns, the op needs 64"),
    "a norm of heads that reach past the value": (first(RmsNorm, heads=3, out="hidden"), "reads 'normed' before"),
    "a linear in place": (last(Linear, x="logits"), "reads 'logits' before an op writes it"),
    "rope of more heads than there are": (first(Rope, heads=400), "rope: q: 400 heads of 16 from column 0 on do not"),
    "rope of an odd head": (first(Rope, head_dim=15), "rot must be even and at least 2, not 15"),
    "rope of no heads": (first(Rope, heads=0), "which turns no heads"),
    "rope of -1 heads of k": (first(Rope, kv_heads=-1), "which turns no heads"),
    "rope of k beside its place": (first(Rope, k_column=1000), "rope: k: 2 heads of 16 from column 1000 on do not"),
    "rope of k at a negative place": (first(Rope, k_column=-16), "rope: k: 2 heads of 16 from column -16 on do not"),
    "the cache of a layer that there is not": (first(KvAppend, layer=2), "names 2, which is neither"),
    "the cache of layer -1": (first(KvAppend, layer=-1), "names -1, which is neither"),
    "k from past the end": (first(KvAppend, k_column=10**6), "kv_append: k: 2 heads of 16 from column 1000000 on"),
    "v from a negative place": (first(KvAppend, v_column=-1), "kv_append: v: 2 heads of 16 from column -1 on"),
    "attention over a layer that there is not": (first(Attention, layer=99), "names 99, which is neither"),
    "attention with heads that cannot share": (first(Attention, heads=3), "3 heads cannot share 2 kv heads"),
    "attention with heads of another size": (first(Attention, head_dim=32), "the cache has 2 heads of 16"),
    "attention with other heads of k": (first(Attention, kv_heads=4), "the cache has 2 heads of 16"),
    "attention with a negative window": (first(Attention, window=-5), "a window of -5 positions"),
    "attention with a negative soft cap": (first(Attention, softcap=-1.0), "a soft cap of -1"),
    "attention with sinks of another length": (first(Attention, sinks="norm"), "sinks has 64 values, the op needs 4"),
    "attention with sinks that the model lacks": (first(Attention, sinks="nothing"), "names 'nothing'"),
    "attention into a value of another width": (first(Attention, out="normed"), "reads 'attended' before"),
    "a residual of another width": (first(Linear, steps=(Residual("hidden"),)), "has 64 columns, the op needs 128"),
    "a residual that does not exist": (first(Linear, steps=(Residual("nothing"),)), "reads 'nothing' before"),
    "a residual that is written later": (first(Linear, steps=(Residual("sampled"),)), "reads 'sampled' before"),
    "a bias of another length": (first(Linear, steps=(Bias("norm"),)), "bias has 64 values, the op needs 128"),
    "a bias that does not exist": (first(Linear, steps=(Bias("nothing"),)), "names 'nothing'"),
    "a gate with an unknown function": (first(Linear, steps=(GatedMul("cube"),)), 'unknown function "cube"; known are'),
    "an unknown activation": (first(Linear, steps=(Activate("cube"),)), 'unknown function "cube"; known are'),
    "an op of an unknown kind": (before_head(Fft()), "has Fft(x='hidden', out='hidden'), which backend native does"),
    "an op that is None": (before_head(None), "has None, which backend native does not run"),
    "a row op that nobody describes": (before_head(RowOp("groupnorm", "hidden", "hidden")), "op groupnorm: no plugin"),
    "experts before a route": (
        before_head(ExpertLinear("layers.0.down_proj", "gated", "hidden", (Residual("hidden"),))),
        "experts before a route",
    ),
    "a combination before a route": (before_head(Combine("hidden", "normed")), "experts before a route"),
    "steps that change the width": (before_head(Apply("hidden", "hidden", (SiluMul(),))), "both input and output"),
    "an op that nobody reads": (
        before_head(Linear("layers.0.o_proj", "attended", "idle"), idle=Value(64)),
        "a LoRA slot layers.0.o_proj already",
    ),
}

AT_ITS_FIRST_STEP: dict[str, Change] = {
    "a norm with an epsilon that is no number": first(RmsNorm, eps=float("nan")),
    "a norm with a negative epsilon": first(RmsNorm, eps=-1.0),
    "attention with a scale that is no number": first(Attention, scale=float("nan")),
    "a factor that is infinite": first(Linear, steps=(Scale(float("inf")),)),
}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    model = tiny_model.write(tmp_path_factory.mktemp("right") / "model")
    with Engine(model, threads=1, overrides={"kv_cache.memory": "4MB"}) as made:
        yield made


def tokens(engine: Engine) -> tuple[int, ...]:
    return engine.generate("the quick", SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True))[0].token_ids


def compiled(engine: Engine, change: Change, monkeypatch: pytest.MonkeyPatch) -> Executable:
    """Return the model with a wrong graph, ready to run."""
    graph = change(decoder_graph(engine.model.config))
    monkeypatch.setitem(added, "llama", replace(families()["llama"], graph=lambda config: graph))
    backend: Backend = engine.plugins.get(BACKENDS, "native")
    return backend.compile(engine.model, engine.config, engine.limits, engine.selector)


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_graph_is_an_error_that_says_what_is_wrong(
    engine: Engine, case: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right = tokens(engine)
    change, words = WRONG[case]
    with pytest.raises((ModelError, KernelError)) as caught:
        compiled(engine, change, monkeypatch)
    assert words in str(caught.value)
    assert str(caught.value).startswith(("family llama: ", "model ", "op groupnorm"))
    assert tokens(engine) == right
    assert capsys.readouterr().err == "", "a kernel got the blame"


@pytest.mark.parametrize("case", AT_ITS_FIRST_STEP)
def test_numbers_of_a_graph_that_lead_to_no_number_end_the_request(
    engine: Engine, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    right, usual = tokens(engine), engine.executable
    wrong = compiled(engine, AT_ITS_FIRST_STEP[case], monkeypatch)
    monkeypatch.setattr(engine, "executable", wrong)
    with pytest.raises(KernelError, match="NaN or infinity"):
        tokens(engine)
    wrong.close()
    monkeypatch.setattr(engine, "executable", usual)
    assert tokens(engine) == right
