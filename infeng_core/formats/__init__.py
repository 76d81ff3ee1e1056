"""Weights: readers of model files, packing into panels, and the engine-native directory."""
