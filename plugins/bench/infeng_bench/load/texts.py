"""Texts made up for tokenizers."""

from __future__ import annotations

import numpy as np

SYLLABLES = tuple(consonant + vowel for consonant in "bcdfghklmnprstvwz" for vowel in "aeiou")


def made_up(rng: np.random.Generator, characters: int) -> str:
    """Return a text of random words, numbers and punctuation, with some multi-byte characters."""
    words: list[str] = []
    length = 0
    while length <= characters:
        kind = rng.random()
        if kind < 0.04:
            word = str(rng.integers(0, 100000))
        elif kind < 0.06:
            word = str(rng.choice(["naïve", "Straße", "東京", "größer", "😀", "déjà"]))
        else:
            word = "".join(rng.choice(SYLLABLES, rng.integers(1, 5)))
        word += str(rng.choice(["", "", "", "", "", ",", ".", ".\n"]))
        words.append(word)
        length += len(word) + 1
    return " ".join(words)[:characters]
