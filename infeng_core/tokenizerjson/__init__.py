"""A model's tokenizer.json as strangers write it: read and checked before anybody works with it."""
