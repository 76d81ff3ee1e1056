"""The scheduler on a virtual clock, and the cost model of its steps."""
