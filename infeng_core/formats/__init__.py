"""Weights: reading Hugging Face directories, packing them into panels, and the engine-native directory."""
