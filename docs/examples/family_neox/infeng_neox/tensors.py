"""The tensors of a checkpoint: ``query_key_value`` has for each head the rows of its q, then of its k and of its v."""

from __future__ import annotations

import re
from dataclasses import replace

from infeng_core.api.formats import PANEL_ROWS, Layout, ModelConfig, Part, decoder

NAMES = {
    "model.embed_tokens": "gpt_neox.embed_in",
    "model.layers": "gpt_neox.layers",
    "model.norm": "gpt_neox.final_layer_norm",
    "lm_head": "embed_out",
    "self_attn.o_proj": "attention.dense",
}
"""The names of modules in a Llama's checkpoint, each with the name here."""
OF_LLAMA = re.compile("|".join(map(re.escape, NAMES)))
IN_HEADS = re.compile(r"self_attn\.([qkv])_proj")


def layout(config: ModelConfig) -> Layout:
    """Return a Llama's layout with LayerNorm and an MLP without a gate, its parts under this family's names."""
    plain = decoder(config, layer_norm=True, plain_mlp=("dense_h_to_4h", "dense_4h_to_h"))
    tensors = tuple(replace(spec, parts=_parts(spec.parts, config)) for spec in plain.tensors)
    return Layout(tensors, tuple(replace(spec, parts=_parts(spec.parts, config)) for spec in plain.vectors))


def _parts(parts: tuple[Part, ...], config: ModelConfig) -> tuple[Part, ...]:
    return tuple(made for part in parts for made in _of(part, config))


def _of(part: Part, config: ModelConfig) -> tuple[Part, ...]:
    """Return a part under its name in this family; q, k and v are a part for each head."""
    named = replace(part, source=_named(part.source), alternative=part.alternative and _named(part.alternative))
    found = IN_HEADS.search(part.source)
    if found is None:
        return (named,)
    place, size = "qkv".index(found[1]), config.head_dim
    source = IN_HEADS.sub("attention.query_key_value", named.source)
    return tuple(
        replace(
            named,
            source=source,
            rows=size,
            first_panel=part.first_panel + head * size // PANEL_ROWS,
            begin=(3 * head + place) * size,
            of=3 * config.heads * size,
        )
        for head in range(config.heads)
    )


def _named(source: str) -> str:
    return OF_LLAMA.sub(lambda found: NAMES[found[0]], source)
