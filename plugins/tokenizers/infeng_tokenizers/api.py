"""The names that plugins may import from this wheel; everything else may change without notice.

``tokenizer files`` in docs/adding-a-plugin.md says what each name is for.
"""

from infeng_tokenizers.detokenizer import StreamingDetokenizer
from infeng_tokenizers.document import merges_of, read_settings, steps_of
from infeng_tokenizers.hftokenizer import HfTokenizer
from infeng_tokenizers.library import open_tokenizer

__all__ = ["HfTokenizer", "StreamingDetokenizer", "merges_of", "open_tokenizer", "read_settings", "steps_of"]
