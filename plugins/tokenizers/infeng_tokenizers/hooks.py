"""The plugin's hook; the tokenizer is imported when the hook is called."""

from __future__ import annotations

from infeng_core.api import TokenizerFactory, hookimpl


@hookimpl
def infeng_tokenizers() -> dict[str, TokenizerFactory]:
    """The tokenizer in tokenizer.json."""
    from infeng_tokenizers.hftokenizer import HfTokenizer

    return {"hf": HfTokenizer}
