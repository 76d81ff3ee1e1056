"""The scheduler on a virtual clock, and what its steps take."""
