"""Adapters: the engine-native file, its layout in memory, and the interface of readers of other files."""
