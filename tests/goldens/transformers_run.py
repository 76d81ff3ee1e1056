"""Run models with transformers in binary32 and write their logits: ``transformers_run.py DIRECTORY...``.

Needs an environment with torch and transformers. A directory holds prompt.npy and positions.npy besides the model, and
gets golden.npz. context.npy, where it is there, holds the ``context`` of ``run``.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM


@torch.no_grad()
def run(
    directory: Path, prompt: NDArray[np.int32], positions: NDArray[np.int32], steps: int, context: int = 0
) -> dict[str, NDArray[np.generic]]:
    """Return logits (positions, vocab), ``greedy`` (steps,) and each step's lead of best over second, ``lead``.

    context: every step is computed anew, as part of so many positions: where the rope follows a sequence's length,
    it is that of one length from the first to the last. 0: steps go on from the cache, as generation does.
    """
    torch.set_num_threads(1)
    model, info = AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    odd = {key: found for key, found in info.items() if found}
    assert not odd, f"the tensors are not those of the model: {odd}"
    model.eval()
    if context:
        return _at_length(model, prompt, positions, steps, context)
    out = model(torch.from_numpy(prompt.astype(np.int64))[None], use_cache=True)
    logits = out.logits[0, torch.from_numpy(positions.astype(np.int64))].numpy()
    last, greedy, lead = out.logits[0, -1], [], []
    for _ in range(steps):
        best = last.topk(2)
        greedy.append(int(best.indices[0]))
        lead.append(float(best.values[0] - best.values[1]))
        out = model(best.indices[:1][None], past_key_values=out.past_key_values, use_cache=True)
        last = out.logits[0, -1]
    return {"logits": logits, "greedy": np.array(greedy, np.int32), "lead": np.array(lead, np.float32)}


def _at_length(
    model: torch.nn.Module, prompt: NDArray[np.int32], positions: NDArray[np.int32], steps: int, context: int
) -> dict[str, NDArray[np.generic]]:
    tokens = torch.zeros(1, context, dtype=torch.int64)  # what follows a token changes nothing before it
    tokens[0, : len(prompt)] = torch.from_numpy(prompt.astype(np.int64))
    length, greedy, lead = len(prompt), [], []
    logits = model(tokens, use_cache=False).logits[0]
    first = logits[torch.from_numpy(positions.astype(np.int64))].numpy()
    for _ in range(steps):
        best = logits[length - 1].topk(2)
        greedy.append(int(best.indices[0]))
        lead.append(float(best.values[0] - best.values[1]))
        tokens[0, length] = greedy[-1]
        length += 1
        logits = model(tokens, use_cache=False).logits[0]
    return {"logits": first, "greedy": np.array(greedy, np.int32), "lead": np.array(lead, np.float32)}


if __name__ == "__main__":
    for source in map(Path, sys.argv[1:]):
        prompt, positions = np.load(source / "prompt.npy"), np.load(source / "positions.npy")
        context = int(np.load(source / "context.npy")) if (source / "context.npy").exists() else 0
        np.savez_compressed(source / "golden.npz", **run(source, prompt, positions, 64, context))
