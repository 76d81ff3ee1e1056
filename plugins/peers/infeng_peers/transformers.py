"""transformers on PyTorch, eager, with PEFT's adapters: the baseline without an inference engine.

The upper half describes the peer's environment and runs in this project's; ``open_model`` runs in the peer's.
"""

from __future__ import annotations

from typing import Any

NAME = "transformers"
ABOUT = "transformers on PyTorch, eager bf16: a baseline"
REQUIREMENTS = ("torch==2.13.0", "transformers==5.23.0", "peft>=0.17", "safetensors>=0.4.3")
IMPORTS = ("torch", "transformers", "peft")
TAKES_ADAPTERS = True
FORMATS = dict.fromkeys(("int4-g64", "int4-g32", "int4-p32", "int8-row", "int8-g32", "bf16", "f16", "f32"), "bf16")
"""transformers has no CPU path for quantized weights: every format is compared with bf16."""

OPTIONS = {"dtype": "bfloat16", "attention": "sdpa", "turns": "rotate", "mix": "off"}
"""``dtype``: bfloat16 or float32. ``attention``: sdpa or eager. ``mix``: on, rows of different adapters in one pass by
PEFT's ``adapter_names``; or off, adapters take turns by ``turns`` (rotate, drain or sort, see ``slots.py``)."""

CHOICES = {
    "dtype": ("bfloat16", "float32"),
    "attention": ("sdpa", "eager"),
    "turns": ("rotate", "drain", "sort"),
    "mix": ("on", "off"),
}


def open_model(model: str, threads: int, options: dict[str, str]) -> Any:
    """Load a Hugging Face directory."""
    import contextlib

    import peft
    import torch
    import transformers

    torch.set_num_threads(threads)
    dtype = {"bfloat16": torch.bfloat16, "float32": torch.float32}[options["dtype"]]
    weights: Any = transformers.AutoModelForCausalLM.from_pretrained(
        model, dtype=dtype, attn_implementation=options["attention"]
    )
    weights.eval()
    config = weights.config
    heads, layers = config.num_key_value_heads, config.num_hidden_layers
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads

    class Transformers:
        vocab = config.vocab_size
        mixes = {"on": True, "off": False}[options["mix"]]

        def introduction(self) -> dict[str, Any]:
            sizes = {name: tensor.numel() * tensor.element_size() for name, tensor in weights.named_parameters()}
            total = sum(sizes.values())
            unread = 0 if config.tie_word_embeddings else sizes["model.embed_tokens.weight"]
            return {
                "version": f"{transformers.__version__}, torch {torch.__version__}",
                "kernels": [torch.backends.cpu.get_cpu_capability()],
                "bytes_per_token": total - unread,
                "details": {
                    "weight_bytes": total,
                    "kv_bytes_per_position": 2 * layers * heads * width * dtype.itemsize,
                },
            }

        def __init__(self) -> None:
            self.model = weights
            self.cohorts: list[Cohort] = []
            self.prompts: dict[int, tuple[list[int], str | None]] = {}
            self.last: dict[int, int] = {}

        def stop(self) -> None:
            self.cohorts, self.prompts, self.last = [], {}, {}

        def drop_adapters(self) -> None:
            if self.model is not weights:
                self.model.unload()
            self.model = weights

        def load_adapter(self, name: str, path: str, scale: float) -> int:
            as_stored = {"adapter_name": name, "autocast_adapter_dtype": False}
            if self.model is weights:
                self.model = peft.PeftModel.from_pretrained(weights, path, **as_stored)
            else:
                self.model.load_adapter(path, **as_stored)
            for module in self.model.modules():
                if isinstance(getattr(module, "scaling", None), dict) and name in module.scaling:
                    module.scaling[name] *= scale
            self.model.eval()
            held = (tensor for key, tensor in self.model.named_parameters() if f".{name}." in key)
            return sum(tensor.numel() * tensor.element_size() for tensor in held)

        def open(self, kind: str, rows: int, positions: int) -> None:
            self.stop()

        def admit(self, slot: int, prompt: list[int], adapter: str | None) -> None:
            self.prompts[slot] = prompt, adapter

        def advance(self, slots: list[int]) -> list[tuple[int, int]]:
            """Prefill new prompts together as a cohort, which then decodes together to its end."""
            fresh = [slot for slot in slots if slot in self.prompts]
            if fresh:
                self.cohorts.append(Cohort({slot: self.prompts.pop(slot) for slot in fresh}))
                moved = [self.cohorts[-1]]
            else:
                moved = [cohort for cohort in self.cohorts if not set(cohort.slots).isdisjoint(slots)]
            for cohort in moved:
                self.last.update(zip(cohort.slots, self._forward(cohort), strict=True))
            return [(slot, self.last[slot]) for cohort in moved for slot in cohort.slots]

        def release(self, slot: int) -> None:
            del self.last[slot]
            for cohort in self.cohorts:
                if slot in cohort.slots:
                    cohort.remove(slot)
            self.cohorts = [cohort for cohort in self.cohorts if cohort.slots]

        def _forward(self, cohort: Cohort) -> list[int]:
            with contextlib.ExitStack() as stack:
                stack.enter_context(torch.inference_mode())
                more: dict[str, Any] = {}
                if self.model is not weights and self.mixes:
                    more["adapter_names"] = [name or "__base__" for name in cohort.adapters]
                elif cohort.adapters[0] is not None:
                    if self.model.active_adapter != cohort.adapters[0]:
                        self.model.set_adapter(cohort.adapters[0])
                elif self.model is not weights:
                    stack.enter_context(self.model.disable_adapter())
                out = self.model(
                    cohort.ids,
                    attention_mask=cohort.mask,
                    position_ids=cohort.positions(),
                    past_key_values=cohort.cache,
                    use_cache=True,
                    logits_to_keep=1,
                    **more,
                )
                return cohort.take(out.logits[:, -1].argmax(-1, keepdim=True))

    class Cohort:
        """Sequences that pass through the model together, padded on the left to the longest."""

        def __init__(self, prompts: dict[int, tuple[list[int], str | None]]) -> None:
            self.slots = list(prompts)
            self.adapters = [adapter for _, adapter in prompts.values()]
            longest = max(len(prompt) for prompt, _ in prompts.values())
            padded = [[0] * (longest - len(prompt)) + prompt for prompt, _ in prompts.values()]
            self.ids = torch.tensor(padded)
            self.mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p, _ in prompts.values()])
            self.cache = transformers.DynamicCache()

        def positions(self) -> Any:
            return (self.mask.cumsum(-1) - 1).clamp(min=0)[:, -self.ids.shape[1] :]

        def take(self, ids: Any) -> list[int]:
            self.ids = ids
            self.mask = torch.cat([self.mask, torch.ones_like(ids)], 1)
            return [int(token) for token in ids[:, 0]]

        def remove(self, slot: int) -> None:
            kept = [row for row, other in enumerate(self.slots) if other != slot]
            self.slots = [self.slots[row] for row in kept]
            self.adapters = [self.adapters[row] for row in kept]
            rows = torch.tensor(kept, dtype=torch.long)
            self.ids, self.mask = self.ids[rows], self.mask[rows]
            if kept:
                self.cache.batch_select_indices(rows)

    return Transformers()
