"""The examples of docs/plugin-reference.md: code for types, which a test runs, and a plugin for each hook."""

from __future__ import annotations

OF_HOOKS = {
    "kernel_libraries": "examples/kernel/infeng_example/plugin.yaml",
    "kernel_checks": "../plugins/inspect/infeng_inspect/hooks.py",
    "tokenizers": "examples/tokenizer/infeng_bytes/__init__.py",
    "policies": "examples/scheduler/infeng_shortest/__init__.py",
    "quant_formats": "examples/format/infeng_int5/plugin.yaml",
    "backends": "examples/backend/infeng_bigram/__init__.py",
    "model_families": "examples/family_neox/infeng_neox/__init__.py",
    "converters": "examples/converter/infeng_archive/__init__.py",
    "adapter_readers": "examples/adapter_reader/infeng_npzlora/__init__.py",
    "adapter_directories": "../plugins/peft/infeng_peft/hooks.py",
    "locators": "examples/locator/infeng_shelf/__init__.py",
    "drafters": "examples/drafter/infeng_again/__init__.py",
    "logit_processors": "examples/logits/infeng_choice/__init__.py",
    "prefix_stores": "examples/prefix_store/infeng_kept/__init__.py",
    "observers": "examples/observer/infeng_lines/__init__.py",
    "commands": "examples/command/infeng_count/__init__.py",
    "run_options": "examples/run_options/infeng_stamp/__init__.py",
    "model_readers": "examples/model_reader/infeng_npy/__init__.py",
    "sources": "examples/source/infeng_npz/__init__.py",
    "model_writers": "../plugins/gguf/infeng_gguf/hooks.py",
    "quantizers": "examples/quantizer/infeng_clip/__init__.py",
    "calibrators": "examples/calibrator/infeng_norms/__init__.py",
}
"""By the kind of a hook, from the folder of the page."""

EXAMPLES = {
    "Batch": """
import numpy as np
from infeng_core.api.engines import Batch

# One sequence decodes its position 40; the first three positions of a prompt run beside it.
batch = Batch(
    segments=[],
    tokens=np.array([7, 5, 6, 8], np.int32),
    positions=np.array([40, 0, 1, 2], np.int32),
    kv_segments=np.array([[0, 1, 40, 0], [1, 4, 0, 3]], np.int32),
    block_tables=np.array([4, 9, 2, 1], np.int32),
    sample_rows=np.array([0, 3], np.int32),
)
for begin, end, position, first in batch.kv_segments:
    for row in range(begin, end):  # a row's keys and values go to this block, at this place in it
        block, place = batch.block_tables[first + batch.positions[row] // 16], batch.positions[row] % 16
        assert (block, place) == ((2, 8) if row == 0 else (1, row - 1))
""",
    "RunningRequest": """
from infeng_core.api import Request
from infeng_core.api.engines import RunningRequest

running = RunningRequest.start(0, Request((5, 6, 7)), [5, 6, 7], capacity=10, seed=1)
running.extend([9], drafted=0)  # a step drew token 9
assert running.tokens[: running.length].tolist() == [5, 6, 7, 9]
assert (running.prompt_length, running.computed, running.last) == (3, 3, 9)
""",
    "Limits": """
from infeng_core.api.engines import Limits

limits = Limits(max_rows=512, max_samples=32, max_segments=32, context=4096, kv_blocks=1024)
assert limits.tokens == 1024 * 16
""",
    "Served": """
from infeng_core.api import Request
from infeng_core.api.engines import RunningRequest, Served

running = RunningRequest.start(0, Request((5, 6, 7)), [5, 6, 7], capacity=10, seed=1)
served = Served(running, prompt_rows=3, new_tokens=1)  # its whole prompt ran, and one token was drawn
assert served.prompt_rows + served.new_tokens == 4
""",
    "Vocabulary": """
from pathlib import Path
from infeng_core.api import Vocabulary

tokenizer = None  # the engine's Tokenizer
vocabulary = Vocabulary(tokenizer=tokenizer, size=40, ends=(2,), directory=Path("."))
assert vocabulary.mask([0, 33]).tolist() == [0b1, 0b10]  # 40 tokens are two words of 32 bits
try:
    vocabulary.mask([40])
except ValueError as error:
    assert "vocabulary of 40" in str(error)
""",
    "Adjustment": """
import numpy as np
from infeng_core.api import Adjustment

# Only tokens 0 to 7 may be drawn, and token 5 becomes less likely.
adjustment = Adjustment(
    allowed=np.array([0xFF, 0], np.uint32),
    ids=np.array([5], np.int32),
    biases=np.array([-1.5], np.float32),
)
assert adjustment.penalties is None
""",
    "Graph": """
from infeng_core.api.formats import Embed, Graph, Linear, RmsNorm, Value, reads, writes

graph = Graph(
    values={"hidden": Value(64), "sampled": Value(64, sampled=True), "logits": Value(320, sampled=True)},
    ops=(
        Embed("embed", "hidden"),
        RmsNorm("norm", "hidden", "sampled", eps=1e-5),
        Linear("embed", "sampled", "logits"),  # the head is tied to the embedding
    ),
    logits="logits",
)
assert reads(graph.ops[2]) == ("sampled",) and writes(graph.ops[2]) == graph.logits
""",
    "TensorSpec": """
from infeng_core.api.formats import Part, TensorSpec

# q with 40 rows fills three panels of 16, so that k begins at column 48.
parts = (Part("q_proj.weight", 40), Part("k_proj.weight", 8, first_panel=3))
spec = TensorSpec("layers.0.qk_proj", 64, parts)
assert (spec.panels, spec.n, int(spec.parts[1].columns()[0])) == (4, 64, 48)
""",
    "VectorSpec": """
import numpy as np
from infeng_core.api.formats import Part, VectorSpec

# The biases of two linears whose outputs are packed together; the last 8 columns have no part and are 0.
parts = (Part("q_proj.bias", 16), Part("k_proj.bias", 8, first_panel=1))
spec = VectorSpec("layers.0.qk_proj.bias", 32, parts)
made = np.zeros(spec.size, np.float32)
for part in spec.parts:
    made[part.columns()] = 1.0
assert made.sum() == 24 and not made[24:].any()
""",
    "Part": """
from infeng_core.api.formats import Part

# The k of the second head in a tensor that has, for each of two heads, 16 rows of q, of k and of v.
part = Part("query_key_value.weight", 16, first_panel=3, begin=64, of=96)
assert part.span == slice(64, 80, 1) and part.columns()[0] == 48 and part.shape(64) == (96, 64)
""",
}
