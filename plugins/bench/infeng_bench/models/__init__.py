"""Models and adapters of random weights, and what a token costs by arithmetic."""
