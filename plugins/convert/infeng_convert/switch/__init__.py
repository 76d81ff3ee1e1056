"""Checkpoints of Granite Switch: a base and its adapters in one, written apart."""
