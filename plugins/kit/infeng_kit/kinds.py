"""The kinds of plugins that can be begun."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Kind:
    """A folder of ``templates``, and what its README says."""

    description: str
    """Of the wheel."""
    use: str
    """The command that shows the plugin at work."""
    next: str
    """Where its author goes on."""
    requires: tuple[str, ...] = field(default=())
    """Wheels besides the core."""


_KERNEL = "`docs/adding-a-kernel.md` of INF-ENG describes kernels. Change {files}, and list new kernels in both {both}."
_ORDER = "--set kernels.order=@NAME@,*,reference"

KINDS = {
    "kernel-c": Kind(
        "A kernel of rmsnorm in C for INF-ENG",
        f"infeng plugins why rmsnorm {_ORDER}    # the engine uses it",
        _KERNEL.format(files="`rmsnorm.c`", both="`library.c` and `plugin.yaml`")
        + " The headers `infeng/c` have the functions, the rounding and the steps of other ops, adapters included.",
    ),
    "kernel-cpp": Kind(
        "A kernel of rope in C++ for INF-ENG, by the loops of its SDK",
        f"infeng plugins why rope {_ORDER}    # the engine uses it",
        _KERNEL.format(files="`rope.cc`", both="`library.c` and `plugin.yaml`"),
    ),
    "kernel-rust": Kind(
        "A kernel of rmsnorm in Rust for INF-ENG",
        f"infeng plugins why rmsnorm {_ORDER}    # the engine uses it",
        _KERNEL.format(files="`src/lib.rs`", both="`src/lib.rs` and `plugin.yaml`")
        + " `src/abi.rs` holds the kernel ABI and needs no change.",
    ),
    "format": Kind(
        "A weight format of 5 bits with its kernel for INF-ENG",
        "infeng run MODEL -p 'Once' --format @NAME@-g32 --set kernels.order=@NAME@,*,reference",
        "`docs/format.md` of INF-ENG describes formats. Change the bytes of a panel in `@IDENT@.c`: `panel_bytes`, "
        "`pack`, `unpack` and the kernel's loop belong together.",
    ),
    "op": Kind(
        "An op over rows in C for INF-ENG, and a model family that uses it",
        "infeng models MODEL    # a checkpoint whose config.json says @CLASS@ForCausalLM",
        "`docs/adding-an-op.md` of INF-ENG describes ops. Change the formula and the operands in `@IDENT@.c`; "
        "`@MODULE@/__init__.py` places the op in a model's graph.",
    ),
    "family": Kind(
        "A model family for INF-ENG",
        "infeng models MODEL    # a checkpoint whose config.json says @CLASS@ForCausalLM",
        "`docs/models.md` of INF-ENG describes families: `graph` says what is computed, `weights` where each tensor "
        "comes from.",
    ),
    "tokenizer": Kind(
        "A tokenizer of bytes for INF-ENG",
        "infeng run MODEL -p 'Once' --set tokenizer.use=@NAME@",
        "`docs/adding-a-plugin.md` of INF-ENG describes tokenizers.",
    ),
    "policy": Kind(
        "A scheduler for INF-ENG that starts short prompts first",
        "infeng run MODEL -p 'Once' --set scheduler.use=@NAME@",
        "`docs/scheduling.md` of INF-ENG describes policies.",
    ),
    "processor": Kind(
        "A logit processor for INF-ENG: the answer is one of several texts",
        "infeng run MODEL -p 'Is it?' --logit-processor '@NAME@=[\"yes\", \"no\"]'",
        "`docs/adding-a-plugin.md` of INF-ENG describes logit processors.",
    ),
    "backend": Kind(
        "A backend for INF-ENG in a few lines of NumPy",
        "infeng run MODEL -p 'Once' --set backend.use=@NAME@",
        "`docs/adding-a-plugin.md` of INF-ENG describes backends.",
    ),
    "command": Kind(
        "A command of INF-ENG that counts the tokens of a text",
        "infeng @NAME@ MODEL 'the quick brown fox'",
        "`docs/adding-a-plugin.md` of INF-ENG describes commands.",
    ),
    "observer": Kind(
        "An observer for INF-ENG that writes a line for each request",
        "infeng run MODEL -p 'Once' --set observers.use=@NAME@",
        "`docs/adding-a-plugin.md` of INF-ENG describes observers.",
    ),
    "route": Kind(
        "A route of INF-ENG's server that says how long a text is",
        'infeng serve MODEL    # then: curl -d \'{"text": "Once"}\' http://127.0.0.1:8000/@NAME@',
        "`docs/serving.md` of INF-ENG describes routes of plugins.",
        ("infeng-serve",),
    ),
}
"""By the word of ``--kind``."""
