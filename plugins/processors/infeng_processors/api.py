"""The names that plugins may import from this wheel; everything else may change without notice.

``bad words`` in docs/adding-a-plugin.md says what each name is for.
"""

from infeng_processors.words import bad_words, drop_bad_words

__all__ = ["bad_words", "drop_bad_words"]
