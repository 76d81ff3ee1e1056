"""Statistics of measurements."""
