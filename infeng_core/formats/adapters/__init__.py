"""Adapters on disk: PEFT directories read and checked against a base, packed, and the engine-native file."""
