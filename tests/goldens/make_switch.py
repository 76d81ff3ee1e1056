"""Write switch.npz with granite-switch and transformers, in an environment of its own:

build/torch/bin/pip install granite-switch transformers
PYTHONPATH=tests build/torch/bin/python tests/goldens/make_switch.py
"""

from __future__ import annotations

import numpy as np
import torch
import transformers
from goldens import switch
from granite_switch.config import GraniteSwitchConfig
from granite_switch.hf import GraniteSwitchForCausalLM


@torch.no_grad()
def main() -> None:
    """Compute the logits of all prompts; refuse a model whose adapters would not be noticed."""
    torch.set_num_threads(1)
    config = GraniteSwitchConfig.from_dict(dict(switch.CONFIG))
    model = GraniteSwitchForCausalLM(config).float().eval()
    state = {name: torch.from_numpy(tensor) for name, tensor in switch.tensors()}
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected and all(name.startswith("model.switch.") for name in missing), (missing, unexpected)
    found = []
    for prompt in switch.prompts():
        logits = model(input_ids=torch.tensor([prompt]), use_cache=False).logits[0]
        print(model.model._last_adapter_indices.tolist(), float(logits.std()))
        found.append(logits[switch.sampled(prompt)].numpy())
    made_by = f"torch {torch.__version__}, transformers {transformers.__version__}, granite-switch 0.1.1"
    np.savez_compressed(switch.EXPECTED, logits=np.stack(found).astype(np.float32), made_by=made_by)


if __name__ == "__main__":
    main()
