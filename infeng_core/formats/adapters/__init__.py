"""Adapters on disk: readers that plugins bring, packing over a base, and the engine-native file."""
