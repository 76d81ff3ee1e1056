"""Train the embedded demo model: ``python base.py MINUTES DATA``; writes tokenizer.json, ckpt/ and model/ here.

DATA is a folder with ``train/gsm8k_train.jsonl``, ``train/wizard_of_oz.txt``, ``text/tinystories.txt``,
``text/tinyshakespeare.txt`` and ``eval/mbpp.jsonl`` (the last two only widen the tokenizer). Needs torch, transformers
and tokenizers.
"""

import argparse
import json
import math
import random
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812 (PyTorch's own habit)
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM

VOCAB = 4096
BOS, EOS = 1, 2
WINDOW = 256  # tokens of one training sequence
BATCH = 16
PEAK_RATE = 2e-3
HELD_OUT = 30_000  # tokens at the end of the shuffled stream


def read_documents(data: Path) -> list[str]:
    """Return every training document: GSM8K once, stories twice, the novel in pieces."""
    questions = [json.loads(line) for line in (data / "train/gsm8k_train.jsonl").open()]
    maths = [f"Question: {q['question'].strip()}\nAnswer: {q['answer'].strip()}" for q in questions]
    stories = [s.strip() for s in (data / "text/tinystories.txt").read_text().split("<|endoftext|>") if s.strip()]
    novel = (data / "train/wizard_of_oz.txt").read_text()
    return maths + stories * 2 + [novel[i : i + 1200] for i in range(0, len(novel), 1200)]


def train_tokenizer(documents: list[str], data: Path) -> Tokenizer:
    """Return a byte-level BPE with single digits, trained on verse and code too, which the adapters need."""
    verse = (data / "text/tinyshakespeare.txt").read_text()[:400_000]
    code = "\n".join(json.dumps(json.loads(line)) for line in (data / "eval/mbpp.jsonl").open())[:200_000]
    tokenizer = Tokenizer(models.BPE(unk_token=None))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=["<unk>", "<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator([*documents, verse, code], trainer)
    return tokenizer


def make_model() -> LlamaForCausalLM:
    """Return the untrained model, 5.77M parameters."""
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCAB,
            hidden_size=256,
            intermediate_size=768,
            num_hidden_layers=6,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=64,
            max_position_embeddings=1024,
            rms_norm_eps=1e-5,
            rope_theta=10000.0,
            tie_word_embeddings=True,
            bos_token_id=BOS,
            eos_token_id=EOS,
        )
    )


def learning_rate(step: int, progress: float, peak: float, warmup: int) -> float:
    """Return the rate: linear warm-up, then a cosine from ``peak`` to 5% of it at ``progress`` 1."""
    cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
    return peak * min(1.0, (step + 1) / warmup) * (0.05 + 0.95 * cosine)


def batches(ids: torch.Tensor, batch: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield (inputs, targets), each (batch, WINDOW), from random positions of the stream, endlessly."""
    while True:
        starts = torch.randint(len(ids) - WINDOW - 1, (batch,))
        yield (
            torch.stack([ids[i : i + WINDOW] for i in starts]),
            torch.stack([ids[i + 1 : i + WINDOW + 1] for i in starts]),
        )


def cross_entropy(model: torch.nn.Module, ids: torch.Tensor, windows: int) -> float:
    """Return the mean loss in nats a token over the first ``windows`` windows of ``ids``."""
    model.eval()
    losses = []
    with torch.no_grad():
        for i in range(0, min(windows * WINDOW, len(ids) - WINDOW), WINDOW):
            piece = ids[i : i + WINDOW + 1]
            losses.append(F.cross_entropy(model(piece[None, :-1]).logits[0], piece[1:]).item())
    model.train()
    return sum(losses) / len(losses)


def steps(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    stream: torch.Tensor,
    *,
    batch: int,
    warmup: int,
    minutes: float,
) -> Iterator[tuple[int, torch.Tensor]]:
    """Run ``optimizer`` on random windows of ``stream`` for ``minutes``; yield each step's number and loss."""
    start = time.time()
    for step, (inputs, targets) in enumerate(batches(stream, batch)):
        progress = (time.time() - start) / (minutes * 60)
        if progress >= 1:
            return
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, progress, PEAK_RATE, warmup)
        loss = F.cross_entropy(model(inputs).logits.view(-1, VOCAB), targets.reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        yield step, loss


def train(model: LlamaForCausalLM, stream: torch.Tensor, held_out: torch.Tensor, minutes: float) -> None:
    """Run AdamW for ``minutes``, printing the loss and keeping checkpoints."""
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=PEAK_RATE, betas=(0.9, 0.95))
    start = time.time()
    for step, loss in steps(model, optimizer, stream, batch=BATCH, warmup=200, minutes=minutes):
        if step % 100 == 0:
            speed = step * BATCH * WINDOW / (time.time() - start)
            print(f"step {step}: loss {loss.item():.3f}, {speed:.0f} tokens/s", flush=True)
        if step and step % 1000 == 0:
            print(f"step {step}: held-out loss {cross_entropy(model, held_out, 112):.3f}", flush=True)
            model.save_pretrained("ckpt")


def main() -> None:
    """Train from scratch and write the model in bf16."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("minutes", type=float)
    parser.add_argument("data", type=Path)
    options = parser.parse_args()

    documents = read_documents(options.data)
    tokenizer = train_tokenizer(documents, options.data)
    tokenizer.save("tokenizer.json")
    random.seed(0)
    random.shuffle(documents)
    ids = torch.tensor([i for text in documents for i in (BOS, *tokenizer.encode(text).ids, EOS)])
    print(f"{len(documents)} documents, {len(ids)} tokens")

    model = make_model()
    train(model, ids[:-HELD_OUT], ids[-HELD_OUT:], options.minutes)
    print(f"held-out loss {cross_entropy(model, ids[-HELD_OUT:], 112):.3f}")
    model.to(torch.bfloat16).save_pretrained("model")


if __name__ == "__main__":
    main()
