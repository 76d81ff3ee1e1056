"""Train the demo adapters on top of ``model/``: ``python adapters.py MINUTES DATA``; writes adapters/NAME here.

The script needs PEFT and the requirements of base.py. MINUTES is the time for each adapter.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from base import BOS, EOS, PEAK_RATE, cross_entropy, steps
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

ALL_LINEARS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
BATCH = 12
SETTINGS: dict[str, dict[str, Any]] = {
    "shakespeare": {"r": 16, "lora_alpha": 32, "target_modules": ALL_LINEARS},
    "python": {"r": 8, "lora_alpha": 16, "target_modules": ALL_LINEARS},
    "shakespeare-dora": {
        "r": 8,
        "lora_alpha": 16,
        "use_dora": True,
        "target_modules": ["q_proj", "v_proj", "up_proj", "down_proj"],
    },
}


def read_documents(name: str, data: Path) -> list[str]:
    """Return the texts of one adapter."""
    if name == "python":
        tasks = [json.loads(line) for line in (data / "eval/mbpp.jsonl").open()]
        return [f"# {task['text']}\n{task['code']}".replace("\r", "") for task in tasks]
    verse = (data / "text/tinyshakespeare.txt").read_text()
    return [verse[i : i + 1500] for i in range(0, len(verse), 1500)]


def train(name: str, ids: torch.Tensor, minutes: float) -> None:
    """Train and save one adapter; the last 5% of ``ids`` are held out."""
    cut = len(ids) * 95 // 100
    stream, held_out = ids[:cut], ids[cut:]
    torch.manual_seed(0)
    base = LlamaForCausalLM.from_pretrained("model", torch_dtype=torch.float32)
    before = cross_entropy(base, held_out, 20)
    model = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", lora_dropout=0.0, **SETTINGS[name]))
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=PEAK_RATE, weight_decay=0.01)
    for _ in steps(model, optimizer, stream, batch=BATCH, warmup=50, minutes=minutes):
        pass
    after = cross_entropy(model, held_out, 20)
    print(f"{name}: {len(ids)} tokens, held-out loss {before:.3f} -> {after:.3f}", flush=True)
    model.save_pretrained(f"adapters/{name}")


def main() -> None:
    """Train every adapter."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("minutes", type=float)
    parser.add_argument("data", type=Path)
    options = parser.parse_args()
    tokenizer = Tokenizer.from_file("tokenizer.json")
    for name in SETTINGS:
        documents = read_documents(name, options.data)
        ids = torch.tensor([i for text in documents for i in (BOS, *tokenizer.encode(text).ids, EOS)])
        train(name, ids, options.minutes)


if __name__ == "__main__":
    main()
