"""The tokenizer of Hugging Face's files for INF-ENG: tokenizer.json, checked before it is used."""

__version__ = "0.1.0"
