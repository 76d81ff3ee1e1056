"""Models and adapters of random weights, and the computed cost of a token."""
