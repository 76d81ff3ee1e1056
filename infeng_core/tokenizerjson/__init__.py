"""A model's tokenizer.json, which may come from anyone: it is read and checked before it is used."""
