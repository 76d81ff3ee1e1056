"""Engine-native artifacts: a directory with a manifest and packed weights."""
